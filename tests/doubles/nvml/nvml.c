/* libnvidia-ml.so.1 with a known truth: what nvidia-ml-py finds in place of NVIDIA's driver.
 *
 * $SPECREG_SCRIPTED_NVML names the script, which device.py writes and explains. All GPUs live on
 * CLOCK_MONOTONIC, from the `started_ns` of each, so that the author of the script knows the true
 * energy between any two moments. Functions, structs and numbers are those of NVIDIA's nvml.h, as
 * far as nvidia-ml-py asks for them. What isn't here, an older driver wouldn't have either. */

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    UNKNOWN = 999,
};
typedef unsigned long long u64;
enum { MAX_GPUS = 16, MAX_ROWS = 32, LONGEST = 96, MAX_SLICES = 7 };

#define NS_PER_S 1000000000LL
#define FRAME_NS 100000000LL /* how often a sensor that samples reports anew */

/* ---- The script: one `key value` a line; `uuid` begins a GPU. ------------------------------ */

#define NUMBERS(X)                                                                                 \
    X(low_w) X(high_w) X(period_ms) X(duty_frac)                                                   \
    X(scope) X(module_extra_w) X(permission) X(lost_at_s) X(sampled_frac)                                            \
    X(has_energy_counter) X(tick_ms) X(counter_factor)                                             \
    X(counter_sticks_after_s) X(counter_resets_at_s) X(read_ms) X(slow_read_ms)                    \
    X(sm_clock_mhz) X(memory_clock_mhz)                                                            \
    X(memory_total_bytes) X(memory_used_bytes) X(utilisation_percent) X(temperature_c)             \
    X(power_limit_w) X(default_power_limit_w) X(virtualization_mode) X(mig) X(slices) X(slice_memory_bytes)

struct process { double pid, memory_bytes, from_s; };
struct throttle { double mask, from_s, to_s; };
/* What a function answers in place of what it would say. */
struct answers {
    int count;
    struct answer { char function[LONGEST]; int code; } rows[MAX_ROWS];
};
struct gpu {
    char uuid[LONGEST], name[LONGEST];
    long long started_ns; /* no double: an uptime of 104 days has no room in one */
    long long now_ns;     /* since started_ns, the same throughout a call */
    unsigned index;
#define X(key) double key;
    NUMBERS(X)
#undef X
    int process_count, throttle_count;
    struct process processes[MAX_ROWS];
    struct throttle throttles[MAX_ROWS];
    struct answers answers;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* ctypes lets go of Python's own */
static struct gpu gpus[MAX_GPUS];
static struct answers driver_answers; /* of the functions that are of no GPU */
static char driver_version[LONGEST] = "580.scripted";
static unsigned gpu_count, users;
static struct stat seen;

static int read_number(struct gpu *gpu, const char *key, const char *value) {
#define X(name) if (!strcmp(key, #name)) { gpu->name = strtod(value, NULL); return 1; }
    NUMBERS(X)
#undef X
    return 0;
}

/* The code that a function is to answer; a name stands for its later versions (_v2), too. */
static int scripted(const struct answers *answers, const char *function) {
    for (int row = 0; row < answers->count; row++) {
        const struct answer *answer = &answers->rows[row];
        if (!strncmp(function, answer->function, strlen(answer->function))) return answer->code;
    }
    return SUCCESS;
}

static int read_answer(struct answers *answers, const char *value) {
    if (answers->count == MAX_ROWS) return 0;
    struct answer *answer = &answers->rows[answers->count++];
    return sscanf(value, "%95s %d", answer->function, &answer->code) == 2;
}

/* Whether a line was understood: a key that isn't read would be a fault that isn't seen. */
static int read_line(const char *key, const char *value) {
    if (!strcmp(key, "uuid")) {
        if (gpu_count == MAX_GPUS) return 0;
        struct gpu *gpu = &gpus[gpu_count];
        memset(gpu, 0, sizeof *gpu);
        snprintf(gpu->uuid, LONGEST, "%s", value);
        gpu->index = gpu_count++;
        return 1;
    }
    if (!gpu_count && !strcmp(key, "driver_version"))
        return snprintf(driver_version, LONGEST, "%s", value) > 0;
    if (!gpu_count) return !strcmp(key, "answer") && read_answer(&driver_answers, value);
    struct gpu *gpu = &gpus[gpu_count - 1];
    if (!strcmp(key, "answer")) return read_answer(&gpu->answers, value);
    if (!strcmp(key, "name")) return snprintf(gpu->name, LONGEST, "%s", value) > 0;
    if (!strcmp(key, "started_ns")) return (gpu->started_ns = atoll(value)) != 0;
    if (!strcmp(key, "process") && gpu->process_count < MAX_ROWS) {
        struct process *row = &gpu->processes[gpu->process_count++];
        return sscanf(value, "%lf %lf %lf", &row->pid, &row->memory_bytes, &row->from_s) == 3;
    }
    if (!strcmp(key, "throttle") && gpu->throttle_count < MAX_ROWS) {
        struct throttle *row = &gpu->throttles[gpu->throttle_count++];
        return sscanf(value, "%lf %lf %lf", &row->mask, &row->from_s, &row->to_s) == 3;
    }
    return read_number(gpu, key, value);
}

/* Reads the script where it isn't the one last seen: it may be replaced while we are in use. */
static int read_script(void) {
    const char *path = getenv("SPECREG_SCRIPTED_NVML");
    struct stat now;
    if (!path || stat(path, &now)) return DRIVER_NOT_LOADED;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return SUCCESS;
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    char line[256], key[64], value[LONGEST];
    int understood = 1;
    gpu_count = 0;
    driver_answers.count = 0;
    while (understood && fgets(line, sizeof line, file)) {
        understood = sscanf(line, "%63s %95[^\n]", key, value) == 2 && read_line(key, value);
        if (!understood) fprintf(stderr, "scripted NVML: %s: can't use this line: %s", path, line);
    }
    fclose(file);
    if (!understood) return UNKNOWN;
    seen = now;
    return SUCCESS;
}

/* A slice of a GPU is a device of its own, with a part of the memory. */
static void cut_slice(struct gpu *gpu, unsigned slice) {
    char whole[LONGEST];
    memcpy(whole, gpu->uuid, LONGEST);
    snprintf(gpu->uuid, LONGEST, "MIG-%.80s-%u", whole, slice);
    memcpy(whole, gpu->name, LONGEST);
    snprintf(gpu->name, LONGEST, "%.80s MIG 1g", whole);
    gpu->memory_total_bytes = gpu->slice_memory_bytes;
    gpu->memory_used_bytes = 0;
}

/* A copy of the GPU behind a handle, as it is now; a handle is an index, plus 1 as 0 is none. A
 * slice's handle is its GPU's, and in the upper half its own number, plus 1. */
static int look(void *handle, struct gpu *gpu) {
    size_t number = (size_t)handle & 0xffff, slice = (size_t)handle >> 16;
    struct timespec now;
    pthread_mutex_lock(&lock);
    int answer = users ? read_script() : UNINITIALIZED;
    if (answer == SUCCESS && (number < 1 || number > gpu_count)) answer = INVALID_ARGUMENT;
    if (answer == SUCCESS) *gpu = gpus[number - 1];
    pthread_mutex_unlock(&lock);
    if (answer != SUCCESS) return answer;
    if (slice) cut_slice(gpu, (unsigned)slice - 1);
    clock_gettime(CLOCK_MONOTONIC, &now);
    gpu->now_ns = now.tv_sec * NS_PER_S + now.tv_nsec - gpu->started_ns;
    return gpu->now_ns >= gpu->lost_at_s * NS_PER_S ? GPU_IS_LOST : SUCCESS;
}

/* The same for what an H100 takes milliseconds to read, energy and fields; each 50th read is slow. */
static int look_slowly(void *handle, struct gpu *gpu) {
    static unsigned reads;
    int answer = look(handle, gpu);
    if (answer != SUCCESS) return answer;
    unsigned number = __atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED);
    long long wait_ns = llround((number % 50 ? gpu->read_ms : gpu->slow_read_ms) * 1e6);
    nanosleep(&(struct timespec){wait_ns / NS_PER_S, wait_ns % NS_PER_S}, NULL);
    return look(handle, gpu);
}

/* ---- The truth, and what the sensors make of it. Times are of the GPU, in ns. -------------- */

static long long floor_to(long long at_ns, long long step_ns) {
    long long rest = at_ns % step_ns;
    return at_ns - (rest < 0 ? rest + step_ns : rest);
}

static double true_power_w(const struct gpu *gpu, long long at_ns) {
    double s = (double)at_ns / NS_PER_S, cycle = s * 1e3 / gpu->period_ms;
    int high = cycle - floor(cycle) < gpu->duty_frac;
    return high ? gpu->high_w : gpu->low_w;
}

/* Since the origin; negative before it. */
static double true_energy_j(const struct gpu *gpu, long long at_ns) {
    double s = (double)at_ns / NS_PER_S, period_s = gpu->period_ms / 1e3;
    double cycles = floor(s / period_s), high_s = gpu->duty_frac * period_s;
    double on_s = cycles * high_s + fmin(s - cycles * period_s, high_s);
    return gpu->low_w * s + (gpu->high_w - gpu->low_w) * on_s;
}

/* What the power sensor makes of a frame: it looks at the frame's beginning alone. */
static double frame_w(const struct gpu *gpu, long long frame_ns) {
    long long look_ns = llround(gpu->sampled_frac * FRAME_NS);
    double seen_j = true_energy_j(gpu, frame_ns + look_ns) - true_energy_j(gpu, frame_ns);
    return seen_j * NS_PER_S / (double)look_ns;
}

/* As the power sensor sees it: of whole frames, where it doesn't look all the time. */
static double sensed_energy_j(const struct gpu *gpu, long long from_ns, long long to_ns) {
    if (gpu->sampled_frac >= 1) return true_energy_j(gpu, to_ns) - true_energy_j(gpu, from_ns);
    double total_j = 0;
    for (long long at = floor_to(from_ns, FRAME_NS); at < floor_to(to_ns, FRAME_NS); at += FRAME_NS)
        total_j += frame_w(gpu, at) * FRAME_NS / NS_PER_S;
    return total_j;
}

/* Of the last second, or this moment's. The fields of another scope than the GPU's aren't there,
   unless its module draws more: then there are both. */
static int power_mw(const struct gpu *gpu, unsigned scope, int instant, unsigned *mw) {
    double power_w = sensed_energy_j(gpu, gpu->now_ns - NS_PER_S, gpu->now_ns);
    if (!gpu->permission) return NO_PERMISSION;
    if (scope != (unsigned)gpu->scope && gpu->module_extra_w <= 0) return NOT_SUPPORTED;
    if (instant && gpu->sampled_frac < 1)
        power_w = frame_w(gpu, floor_to(gpu->now_ns, FRAME_NS) - FRAME_NS);
    else if (instant)
        power_w = true_power_w(gpu, gpu->now_ns);
    if (scope != (unsigned)gpu->scope) power_w += gpu->module_extra_w;
    *mw = (unsigned)llround(power_w * 1e3);
    return SUCCESS;
}

/* The counter at its last tick; the driver was loaded at the origin, or where it was reset. */
static int counter_mj(const struct gpu *gpu, u64 *mj) {
    if (!gpu->permission) return NO_PERMISSION;
    if (!gpu->has_energy_counter) return NOT_SUPPORTED;
    double last_ns = fmin((double)gpu->now_ns, gpu->counter_sticks_after_s * NS_PER_S);
    long long tick_ns = floor_to((long long)last_ns, llround(gpu->tick_ms * 1e6)), from_ns = 0;
    double reset_ns = gpu->counter_resets_at_s * NS_PER_S;
    if ((double)tick_ns >= reset_ns) from_ns = (long long)reset_ns;
    double energy_j = true_energy_j(gpu, tick_ns) - true_energy_j(gpu, from_ns);
    energy_j += gpu->module_extra_w * (double)(tick_ns - from_ns) / NS_PER_S;
    *mj = (u64)llround(fmax(energy_j, 0) * 1e3 * gpu->counter_factor);
    return SUCCESS;
}

static u64 throttle_mask(const struct gpu *gpu) {
    u64 mask = 0;
    double now_s = (double)gpu->now_ns / NS_PER_S;
    for (int row = 0; row < gpu->throttle_count; row++) {
        const struct throttle *throttle = &gpu->throttles[row];
        if (now_s >= throttle->from_s && now_s < throttle->to_s) mask |= (u64)throttle->mask;
    }
    return mask;
}

/* ---- The library. -------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int answer = read_script();
    if (answer == SUCCESS) answer = scripted(&driver_answers, "nvmlInit");
    if (answer == SUCCESS) users++;
    pthread_mutex_unlock(&lock);
    return answer;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int answer = users ? SUCCESS : UNINITIALIZED;
    if (users) users--;
    pthread_mutex_unlock(&lock);
    return answer;
}

const char *nvmlErrorString(int answer) {
    static char text[48];
    snprintf(text, sizeof text, "error %d of the scripted NVML", answer);
    return text;
}

static int say(const char *text, char *out, unsigned size) {
    return (unsigned)snprintf(out, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int answer = scripted(&driver_answers, "nvmlSystemGetDriverVersion");
    return answer == SUCCESS ? say(driver_version, out, size) : answer;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    pthread_mutex_lock(&lock);
    int answer = users ? read_script() : UNINITIALIZED;
    if (answer == SUCCESS) answer = scripted(&driver_answers, "nvmlDeviceGetCount");
    *count = gpu_count;
    pthread_mutex_unlock(&lock);
    return answer;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    struct gpu gpu;
    *handle = (void *)((size_t)index + 1);
    int answer = look(*handle, &gpu);
    return answer == SUCCESS ? scripted(&gpu.answers, "nvmlDeviceGetHandleByIndex") : answer;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    struct gpu gpu;
    int answer = look(handle, &gpu);
    *count = MAX_SLICES;
    return answer == SUCCESS ? scripted(&gpu.answers, "nvmlDeviceGetMaxMigDeviceCount") : answer;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    struct gpu gpu;
    int answer = look(handle, &gpu);
    if (answer != SUCCESS) return answer;
    *slice = (void *)((size_t)handle | ((size_t)index + 1) << 16);
    return gpu.mig && index < gpu.slices ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    struct gpu gpu;
    unsigned count;
    int answer = nvmlDeviceGetCount_v2(&count);
    for (unsigned index = 0; answer == SUCCESS && index < count; index++) {
        int one = nvmlDeviceGetHandleByIndex_v2(index, handle);
        look(*handle, &gpu);
        if (!strcmp(gpu.uuid, uuid)) return one;
        void *whole = *handle;
        for (unsigned slice = 0; gpu.mig && slice < gpu.slices; slice++) {
            struct gpu cut = gpu;
            cut_slice(&cut, slice);
            if (strcmp(cut.uuid, uuid)) continue;
            return nvmlDeviceGetMigDeviceHandleByIndex(whole, slice, handle);
        }
    }
    return answer == SUCCESS ? NOT_FOUND : answer;
}

/* ---- A device. `says` answers, once the device is known to be there. ------------------------ */

#define LOOKED(looks, function, says, ...)                                                         \
    int function(void *handle, __VA_ARGS__) {                                                      \
        struct gpu gpu;                                                                            \
        int answer = looks(handle, &gpu);                                                          \
        if (answer == SUCCESS) answer = scripted(&gpu.answers, #function);                         \
        return answer == SUCCESS ? (says) : answer;                                                \
    }
#define ASKED(function, says, ...) LOOKED(look, function, says, __VA_ARGS__)
#define ONE(function, type, value) ASKED(function, (*out = value, SUCCESS), type *out)
#define TWO(function, type, value, other)                                                          \
    ASKED(function, (*out = value, *second = other, SUCCESS), type *out, type *second)

ASKED(nvmlDeviceGetName, say(gpu.name, out, size), char *out, unsigned size)
ASKED(nvmlDeviceGetUUID, say(gpu.uuid, out, size), char *out, unsigned size)
ONE(nvmlDeviceGetIndex, unsigned, gpu.index)
TWO(nvmlDeviceGetMigMode, unsigned, gpu.mig, gpu.mig)

ONE(nvmlDeviceGetCurrentClocksEventReasons, u64, throttle_mask(&gpu))
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, u64, throttle_mask(&gpu))

ONE(nvmlDeviceGetVirtualizationMode, unsigned, gpu.virtualization_mode)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, gpu.default_power_limit_w * 1e3)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned, gpu.power_limit_w * 1e3)
ASKED(nvmlDeviceGetPowerUsage, power_mw(&gpu, 0, 0, out), unsigned *out)
LOOKED(look_slowly, nvmlDeviceGetTotalEnergyConsumption, counter_mj(&gpu, out), u64 *out)

/* Graphics and SM clock are one, then memory's; a GPU for computing has no video clock. */
static int clock_of(const struct gpu *gpu, unsigned kind, unsigned *out) {
    if (kind > 3) return INVALID_ARGUMENT;
    *out = (unsigned)(kind == 2 ? gpu->memory_clock_mhz : gpu->sm_clock_mhz);
    return kind == 3 ? NOT_SUPPORTED : SUCCESS;
}

ASKED(nvmlDeviceGetClockInfo, clock_of(&gpu, kind, out), unsigned kind, unsigned *out)

ASKED(nvmlDeviceGetTemperature, sensor ? INVALID_ARGUMENT : (*c = gpu.temperature_c, SUCCESS),
      unsigned sensor, unsigned *c)

/* A GPU in slices has no utilisation as a whole. */
struct utilisation { unsigned gpu, memory; };
ASKED(nvmlDeviceGetUtilizationRates,
      gpu.mig ? NOT_SUPPORTED : (out->gpu = out->memory = gpu.utilisation_percent, SUCCESS),
      struct utilisation *out)

struct memory { u64 total, free, used; };
#define FREE_BYTES (gpu.memory_total_bytes - gpu.memory_used_bytes)
ONE(nvmlDeviceGetMemoryInfo, struct memory,
    ((struct memory){gpu.memory_total_bytes, FREE_BYTES, gpu.memory_used_bytes}))

struct pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};
static int place_of(const struct gpu *gpu, struct pci *out) {
    *out = (struct pci){.bus = gpu->index + 1, .device_id = 0x233010de};
    snprintf(out->legacy_id, sizeof out->legacy_id, "0000:%02X:00.0", out->bus & 0xff);
    snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus & 0xff);
    return SUCCESS;
}
ASKED(nvmlDeviceGetPciInfo_v3, place_of(&gpu, out), struct pci *out)

/* ---- Processes: all compute, none draws. ---------------------------------------------------- */

struct running { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };

static int list(const struct gpu *gpu, unsigned *count, struct running *out) {
    unsigned room = *count, found = 0;
    for (int row = 0; row < gpu->process_count; row++) {
        const struct process *one = &gpu->processes[row];
        if (gpu->now_ns < one->from_s * NS_PER_S) continue;
        if (found < room) out[found] = (struct running){one->pid, one->memory_bytes, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define RUNNING(function)                                                                          \
    ASKED(function, list(&gpu, count, out), unsigned *count, struct running *out)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3)

/* ---- Fields: each says for itself whether it could be read. --------------------------------- */

enum { POWER_AVERAGE = 185, POWER_INSTANT = 186, UNSIGNED_INT = 1 };
struct field {
    unsigned id, scope;
    long long timestamp_us, latency_us;
    unsigned type;
    int answer;
    union { unsigned number; u64 big; } value;
};

static void read_field(const struct gpu *gpu, struct field *field) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    field->timestamp_us = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    field->latency_us = 0;
    field->answer = NOT_SUPPORTED;
    if (field->id == POWER_AVERAGE || field->id == POWER_INSTANT) {
        field->type = UNSIGNED_INT;
        field->answer =
            power_mw(gpu, field->scope, field->id == POWER_INSTANT, &field->value.number);
    }
}

int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
    struct gpu gpu;
    int answer = look_slowly(handle, &gpu);
    if (answer == SUCCESS) answer = scripted(&gpu.answers, "nvmlDeviceGetFieldValues");
    for (int place = 0; answer == SUCCESS && place < count; place++)
        read_field(&gpu, &fields[place]);
    return answer;
}
