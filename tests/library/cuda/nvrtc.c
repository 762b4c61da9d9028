/* A libnvrtc.so.13 that compiles nothing: the fake driver has its kernels already. What begins as
 * machine code does is followed by the source, by which the driver knows which of its kernels are there. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, INVALID_PROGRAM = 4 };
#define MAGIC "\x7f" "ELF"

struct program { uint64_t source_bytes; char *source; int compiled; };

#define API __attribute__((visibility("default")))

API int nvrtcVersion(int *major, int *minor)
{
    /* No real one's: what it makes is kept by its version. */
    *major = 99;
    *minor = 0;
    return SUCCESS;
}

API const char *nvrtcGetErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    default: return "NVRTC_ERROR unknown";
    }
}

API int nvrtcCreateProgram(struct program **made, const char *source, const char *name, int count,
    const char *const *headers, const char *const *names)
{
    (void)name;
    (void)headers;
    (void)names;
    if (!source || count) return INVALID_INPUT;
    struct program *program = malloc(sizeof *program);
    char *copy = strdup(source);
    if (!program || !copy) {
        free(program);
        free(copy);
        return OUT_OF_MEMORY;
    }
    *program = (struct program){ strlen(source), copy, 0 };
    *made = program;
    return SUCCESS;
}

API int nvrtcCompileProgram(struct program *program, int count, const char *const *options)
{
    if (!program || (count && !options)) return INVALID_PROGRAM;
    program->compiled = 1;
    return SUCCESS;
}

API int nvrtcGetCUBINSize(struct program *program, size_t *bytes)
{
    if (!program || !program->compiled) return INVALID_PROGRAM;
    *bytes = strlen(MAGIC) + program->source_bytes + 1;
    return SUCCESS;
}

API int nvrtcGetCUBIN(struct program *program, char *to)
{
    if (!program || !program->compiled) return INVALID_PROGRAM;
    memcpy(to, MAGIC, strlen(MAGIC));
    memcpy(to + strlen(MAGIC), program->source, program->source_bytes + 1);
    return SUCCESS;
}

/* The log is empty; its size counts the terminating zero, as NVRTC's does. */
API int nvrtcGetProgramLogSize(struct program *program, size_t *bytes)
{
    *bytes = 1;
    return program ? SUCCESS : INVALID_PROGRAM;
}

API int nvrtcGetProgramLog(struct program *program, char *to)
{
    *to = 0;
    return program ? SUCCESS : INVALID_PROGRAM;
}

API int nvrtcDestroyProgram(struct program **program)
{
    if (!program || !*program) return INVALID_PROGRAM;
    free((*program)->source);
    free(*program);
    *program = NULL;
    return SUCCESS;
}
