/* cpu_count.c: how many physical cores this process may use. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_CPUS = CPU_SETSIZE };

static bool read_text(const char *path, char *text, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t n = read(file, text, size - 1);
  close(file);
  if (n <= 0) return false;
  text[n] = '\0';
  return true;
}

static long topology(int cpu, const char *what) {
  char path[96], text[32];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
  return read_text(path, text, sizeof text) ? strtol(text, NULL, 10) : -1;
}

/* A container's CPU quota, rounded up: threads beyond it only stall each other. */
static int32_t quota(int32_t cores) {
  char text[64], *end;
  if (!read_text("/sys/fs/cgroup/cpu.max", text, sizeof text)) return cores;
  long allowed = strtol(text, &end, 10); /* "max 100000" when there is none */
  long period = end == text ? 0 : strtol(end, NULL, 10);
  if (allowed <= 0 || period <= 0) return cores;
  long limit = (allowed + period - 1) / period;
  return limit < cores ? (int32_t)limit : cores;
}

int32_t gc_physical_cores(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set)) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return quota(n > 0 && n < MAX_CPUS ? (int32_t)n : 1);
  }
  long seen[MAX_CPUS]; /* package and core in one number */
  int32_t cores = 0;
  for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
    if (!CPU_ISSET(cpu, &set)) continue;
    long core = topology(cpu, "core_id"), package = topology(cpu, "physical_package_id");
    /* Unknown (hidden in a container): count the CPU as a core of its own. */
    long key = core < 0 ? -1 - (long)cpu : (package < 0 ? 0 : package) << 20 | core;
    int32_t i = 0;
    while (i < cores && seen[i] != key) i++;
    if (i == cores) seen[cores++] = key;
  }
  return quota(cores > 0 ? cores : 1);
}
