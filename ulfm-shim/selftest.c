/* Self-test of the agreement that every commit of a training step relies on: ranks are SIGKILLed
 * inside MPIX_Comm_agree, one after another, and the survivors' answers must be equal each time.
 *
 *   mpirun ... -n RANKS selftest REPETITIONS SEED        (REPETITIONS <= RANKS - 2)
 *
 * Before the first death: agreement on a revoked communicator works. In each repetition everybody
 * agrees round after round on flags drawn from (seed, repetition, round, rank); one rank's second
 * thread kills it at a random moment, and jitter keeps some ranks outside the call when it strikes.
 * Rounds that succeed must give the AND of all flags; the first that fails must give every
 * survivor the same flags and class, in the same round. Rank 0 of the survivors prints one line a
 * repetition, "equal ..." or "UNEQUAL ..."; a run is good when REPETITIONS lines say "equal". In the
 * end it says how many bytes of its heap a round of the survivors keeps: "kept N".
 */
#define _GNU_SOURCE
#include "ulfm_shim.h"

#include <malloc.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 2000000, /* a kill that never comes is an error, not a hang */
    ROUND_ARMED = 5,
    KILL_DELAY_US_MAX = 2000,
    JITTER_US_MAX = 30,
    ROUNDS_MEASURED = 2000,
    RUN_SECONDS_MAX = 30
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static void give_up(const char *what, int class)
{
    char text[256];
    shim_error_text(class, text, sizeof text);
    printf("FAILED %s: %d %s\n", what, class, text);
    fflush(stdout);
    _exit(1);
}

static void require(const char *what, int class)
{
    if (class != 0) {
        give_up(what, class);
    }
}

static useconds_t kill_delay_us;

static void *strike(void *unused)
{
    usleep(kill_delay_us);
    kill(getpid(), SIGKILL);
    return unused;
}

/* One bit is cleared by one rank in three, so that every answer shows whose flags were in it. */
static int flags_of(uint64_t draw, int rank)
{
    uint64_t own = mix(draw, (uint64_t)rank);
    return own % 3 == 0 ? (int)(0x7fffffff & ~(1u << (own / 3 % 31))) : 0x7fffffff;
}

static void agreement_works_on_a_revoked_communicator(shim_comm world, int size)
{
    shim_comm copy;
    int32_t flags, rank;
    require("rank", shim_rank(world, &rank));
    require("duplicate", shim_duplicate(world, &copy));
    if (rank == size - 1) {
        require("revoke", shim_revoke(copy));
    }
    flags = rank == 1 ? 0x0e : 0x0f;
    require("agree on a revoked communicator", shim_agree(copy, &flags));
    if (flags != 0x0e) {
        give_up("flags on a revoked communicator", flags);
    }
    shim_park(copy);
}

struct answer {
    int64_t rounds, flags, class, digest;
};

/* Agrees until a round fails; the victim dies on the way. */
static struct answer agree_until_failure(shim_comm comm, uint64_t seed, int victim)
{
    int32_t rank, size;
    struct answer answer = {0, 0, 0, 0};
    require("rank", shim_rank(comm, &rank));
    require("size", shim_size(comm, &size));
    for (int round = 0; round < ROUNDS_MAX; round++) {
        uint64_t draw = mix(seed, (uint64_t)round);
        if (rank == victim && round == ROUND_ARMED) {
            pthread_t thread;
            kill_delay_us = (useconds_t)(mix(draw, 1u << 20) % KILL_DELAY_US_MAX);
            require("pthread_create", pthread_create(&thread, NULL, strike, NULL));
        }
        uint64_t jitter = mix(draw, (uint64_t)rank + (1u << 21));
        if (jitter % 16 == 0) {
            usleep((useconds_t)(jitter / 16 % JITTER_US_MAX));
        }
        int32_t flags = flags_of(draw, rank);
        int class = shim_agree(comm, &flags);
        answer.rounds = round;
        answer.flags = flags;
        answer.class = class;
        answer.digest = (int64_t)mix((uint64_t)answer.digest, mix((uint64_t)flags, (uint64_t)class));
        if (class != 0) {
            return answer;
        }
        int expected = 0x7fffffff;
        for (int other = 0; other < size; other++) {
            expected &= flags_of(draw, other);
        }
        if (flags != expected) {
            give_up("flags of a round without failure", flags);
        }
    }
    give_up("the victim did not die", 0);
    return answer;
}

/* Compares over the survivors' own communicator; rank 0 of it speaks. */
static void compare(shim_comm survivors, struct answer mine, int repetition, int victim)
{
    int32_t rank, size;
    require("rank", shim_rank(survivors, &rank));
    require("size", shim_size(survivors, &size));
    struct answer *all = calloc((size_t)size, sizeof *all);
    if (all == NULL) {
        give_up("memory", 0);
    }
    require("all_gather", shim_all_gather(&mine, all, (int)sizeof mine,
                                          MPI_Type_c2f(MPI_BYTE), survivors));
    int equal = 1;
    for (int i = 1; i < size; i++) {
        equal = equal && all[i].rounds == all[0].rounds && all[i].flags == all[0].flags &&
                all[i].class == all[0].class && all[i].digest == all[0].digest;
    }
    if (rank == 0) {
        printf("%s repetition %d: victim %d, %d survivors, round %ld, flags %08lx, class %ld\n",
               equal ? "equal" : "UNEQUAL", repetition, victim, size, (long)mine.rounds,
               (long)mine.flags, (long)mine.class);
        fflush(stdout);
    }
    free(all);
}

/* What memory rounds among survivors keep, each. */
static void measure_memory(shim_comm survivors)
{
    int32_t rank;
    size_t before = 0;
    require("rank", shim_rank(survivors, &rank));
    for (int round = -ROUNDS_MEASURED; round < ROUNDS_MEASURED; round++) {
        int32_t flags = 1;
        before = round == 0 ? mallinfo2().uordblks : before;
        require("agree among survivors", shim_agree(survivors, &flags));
    }
    size_t after = mallinfo2().uordblks;
    if (rank == 0) {
        printf("kept %ld\n", ((long)after - (long)before) / ROUNDS_MEASURED);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: selftest REPETITIONS SEED\n");
        return 2;
    }
    int repetitions = atoi(argv[1]);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    signal(SIGPIPE, SIG_IGN); /* a write to a dead peer's socket must not kill a survivor */
    alarm(RUN_SECONDS_MAX);
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    require("start", shim_start());
    int32_t size;
    shim_comm comm;
    require("duplicate", shim_duplicate(shim_world(), &comm));
    require("size", shim_size(comm, &size));
    if (repetitions < 1 || repetitions > size - 2) {
        give_up("REPETITIONS must be between 1 and RANKS - 2", 0);
    }
    agreement_works_on_a_revoked_communicator(comm, size);
    for (int repetition = 0; repetition < repetitions; repetition++) {
        uint64_t draw = mix(seed, (uint64_t)repetition);
        int victim = (int)(draw % (uint64_t)size);
        struct answer mine = agree_until_failure(comm, draw, victim);
        shim_comm survivors;
        require("shrink", shim_shrink(comm, &survivors));
        shim_park(comm);
        comm = survivors;
        compare(comm, mine, repetition, victim);
        require("size", shim_size(comm, &size));
    }
    measure_memory(comm);
    require("barrier", shim_barrier(comm));
    shim_park(comm);
    shim_finalize();
    return 0;
}
