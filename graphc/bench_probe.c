/* Measures what a machine can do at most: float32 fused multiply-adds and reads from memory.
 *
 * Compiled with -DLANES=<floats in a vector register> and the machine's features, so that one
 * vector below is one register.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef float vector __attribute__((vector_size(LANES * 4)));

enum { CHAINS = 12, ROUNDS = 20000, MAX_THREADS = 1024 };

typedef struct {
    const char* data; /* NULL: count arithmetic, else read these bytes */
    size_t bytes;
    double seconds;
    double done; /* out: floating-point operations or bytes */
    double elapsed;
    float sink;
    atomic_int* start; /* 0: wait, 1: go, -1: give up */
} work;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Twelve independent chains hide the latency of four to six cycles of two units. */
static float multiply_add(float seed) {
    vector acc[CHAINS];
    vector scale = (vector){0} + 0.999f + 0.0f * seed;
    vector shift = (vector){0} + seed;
    for (int k = 0; k < CHAINS; k++) acc[k] = shift + (float)k;
    for (int i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) acc[k] = acc[k] * scale + shift;
    }
    float sum = 0.0f;
    for (int k = 0; k < CHAINS; k++)
        for (int lane = 0; lane < LANES; lane++) sum += acc[k][lane];
    return sum;
}

static float read_all(const char* data, size_t bytes) {
    vector acc[8] = {{0}};
    size_t step = sizeof(vector) * 8;
    for (size_t i = 0; i + step <= bytes; i += step) {
        const vector* from = (const vector*)(const void*)(data + i);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) acc[k] += from[k];
    }
    float sum = 0.0f;
    for (int k = 0; k < 8; k++)
        for (int lane = 0; lane < LANES; lane++) sum += acc[k][lane];
    return sum;
}

static void* run(void* argument) {
    work* w = argument;
    int go;
    while ((go = atomic_load(w->start)) == 0) {
    }
    if (go < 0) return NULL;
    double begin = now();
    do {
        if (w->data) {
            w->sink += read_all(w->data, w->bytes);
            w->done += (double)w->bytes;
        } else {
            w->sink += multiply_add(1e-3f);
            w->done += 2.0 * LANES * CHAINS * ROUNDS;
        }
        w->elapsed = now() - begin;
    } while (w->elapsed < w->seconds);
    return NULL;
}

/* Sum of the threads' rates, in operations or bytes per second; negative when a thread or memory
 * cannot be had. `bytes` is each thread's share of memory to read, 0 to measure arithmetic. */
double graphc_probe(int threads, double seconds, size_t bytes) {
    if (threads < 1 || threads > MAX_THREADS) return -1.0;
    size_t size = bytes / 512 * 512;
    char* data = NULL;
    if (size) {
        if (posix_memalign((void**)&data, 64, size * (size_t)threads)) return -1.0;
        memset(data, 0, size * (size_t)threads);
    }
    work* works = calloc((size_t)threads, sizeof *works);
    pthread_t* ids = calloc((size_t)threads, sizeof *ids);
    double rate = -1.0;
    if (works && ids) {
        atomic_int start = 0;
        int ready = 1;
        for (int t = 0; t < threads; t++)
            works[t] = (work){.data = size ? data + size * (size_t)t : NULL,
                              .bytes = size,
                              .seconds = seconds,
                              .start = &start};
        while (ready < threads && !pthread_create(&ids[ready], NULL, run, &works[ready])) ready++;
        atomic_store(&start, ready == threads ? 1 : -1);
        run(&works[0]);
        for (int t = 1; t < ready; t++) pthread_join(ids[t], NULL);
        if (ready == threads) {
            rate = 0.0;
            for (int t = 0; t < threads; t++) rate += works[t].done / works[t].elapsed;
        }
    }
    free(works);
    free(ids);
    free(data);
    return rate;
}
