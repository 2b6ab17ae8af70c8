/* cpu_features.c: says which CPU feature is missing, instead of an illegal instruction later. */
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };

/* Where CPUID reports a feature, by LLVM's name; `state` is what the system must save in XCR0. */
typedef struct {
  const char *name;
  uint32_t leaf, subleaf;
  uint8_t reg, bit;
  uint32_t state;
} place;

#define AVX 0x6u     /* XMM and YMM */
#define AVX512 0xe6u /* and the opmasks and ZMM */
#define AMX 0x60000u /* tiles */

static const place places[] = {
    {"cx8", 1, 0, EDX, 8, 0},
    {"cmov", 1, 0, EDX, 15, 0},
    {"mmx", 1, 0, EDX, 23, 0},
    {"fxsr", 1, 0, EDX, 24, 0},
    {"sse", 1, 0, EDX, 25, 0},
    {"sse2", 1, 0, EDX, 26, 0},
    {"sse3", 1, 0, ECX, 0, 0},
    {"pclmul", 1, 0, ECX, 1, 0},
    {"ssse3", 1, 0, ECX, 9, 0},
    {"fma", 1, 0, ECX, 12, AVX},
    {"cx16", 1, 0, ECX, 13, 0},
    {"sse4.1", 1, 0, ECX, 19, 0},
    {"sse4.2", 1, 0, ECX, 20, 0},
    {"movbe", 1, 0, ECX, 22, 0},
    {"popcnt", 1, 0, ECX, 23, 0},
    {"aes", 1, 0, ECX, 25, 0},
    {"xsave", 1, 0, ECX, 26, 0},
    {"avx", 1, 0, ECX, 28, AVX},
    {"f16c", 1, 0, ECX, 29, AVX},
    {"rdrnd", 1, 0, ECX, 30, 0},
    {"fsgsbase", 7, 0, EBX, 0, 0},
    {"bmi", 7, 0, EBX, 3, 0},
    {"avx2", 7, 0, EBX, 5, AVX},
    {"bmi2", 7, 0, EBX, 8, 0},
    {"avx512f", 7, 0, EBX, 16, AVX512},
    {"avx512dq", 7, 0, EBX, 17, AVX512},
    {"rdseed", 7, 0, EBX, 18, 0},
    {"adx", 7, 0, EBX, 19, 0},
    {"avx512ifma", 7, 0, EBX, 21, AVX512},
    {"clflushopt", 7, 0, EBX, 23, 0},
    {"clwb", 7, 0, EBX, 24, 0},
    {"avx512cd", 7, 0, EBX, 28, AVX512},
    {"sha", 7, 0, EBX, 29, 0},
    {"avx512bw", 7, 0, EBX, 30, AVX512},
    {"avx512vl", 7, 0, EBX, 31, AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512},
    {"avx512vbmi2", 7, 0, ECX, 6, AVX512},
    {"gfni", 7, 0, ECX, 8, 0},
    {"vaes", 7, 0, ECX, 9, AVX},
    {"vpclmulqdq", 7, 0, ECX, 10, AVX},
    {"avx512vnni", 7, 0, ECX, 11, AVX512},
    {"avx512bitalg", 7, 0, ECX, 12, AVX512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, AVX512},
    {"amx-bf16", 7, 0, EDX, 22, AMX},
    {"avx512fp16", 7, 0, EDX, 23, AVX512},
    {"amx-tile", 7, 0, EDX, 24, AMX},
    {"amx-int8", 7, 0, EDX, 25, AMX},
    {"avxvnni", 7, 1, EAX, 4, AVX},
    {"avx512bf16", 7, 1, EAX, 5, AVX512},
    {"avxifma", 7, 1, EAX, 23, AVX},
    {"avxvnniint8", 7, 1, EDX, 4, AVX},
    {"avxneconvert", 7, 1, EDX, 5, AVX},
    {"sahf", 0x80000001u, 0, ECX, 0, 0},
    {"lzcnt", 0x80000001u, 0, ECX, 5, 0},
    {"sse4a", 0x80000001u, 0, ECX, 6, 0},
    {"prfchw", 0x80000001u, 0, ECX, 8, 0},
};

static uint32_t enabled_states(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no OSXSAVE */
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

/* The tiles' 8 KiB of state are saved only for processes that ask for it (Linux 5.16). */
static bool may_use_tiles(void) {
#ifdef SYS_arch_prctl
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

static bool has(const char *feature) {
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const place *p = &places[i];
    if (strcmp(p->name, feature)) continue;
    uint32_t r[4];
    return __get_cpuid_count(p->leaf, p->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) &&
           (r[p->reg] >> p->bit & 1) && (enabled_states() & p->state) == p->state &&
           (p->state != AMX || may_use_tiles());
  }
  return false;
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

/* Bits of AT_HWCAP and AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h), by LLVM's names. */
typedef struct {
  const char *name;
  unsigned long word;
  uint8_t bit;
} place;

static const place places[] = {
    {"fp-armv8", AT_HWCAP, 0},  {"neon", AT_HWCAP, 1},   {"aes", AT_HWCAP, 3},
    {"sha2", AT_HWCAP, 6},      {"crc", AT_HWCAP, 7},    {"lse", AT_HWCAP, 8},
    {"fullfp16", AT_HWCAP, 10}, {"rdm", AT_HWCAP, 12},   {"rcpc", AT_HWCAP, 15},
    {"dotprod", AT_HWCAP, 20},  {"sve", AT_HWCAP, 22},   {"fp16fml", AT_HWCAP, 23},
    {"sve2", AT_HWCAP2, 1},     {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
};

static bool has(const char *feature) {
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    if (!strcmp(places[i].name, feature)) return getauxval(places[i].word) >> places[i].bit & 1;
  }
  return false;
}

#else
static bool has(const char *feature) {
  (void)feature;
  return false;
}
#endif

int gc_check_features(const char *const *features, int32_t n_features, gc_error *error) {
  for (int32_t i = 0; i < n_features; i++) {
    if (!has(features[i]))
      return gc_fail(
          error, GC_ERROR_ARTIFACT,
          "this CPU has no '%s', which the kernels need; compile for a target without it",
          features[i]);
  }
  return GC_OK;
}
