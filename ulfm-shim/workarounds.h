/* What the shim's files need of each other. */
#ifndef ULFM_WORKAROUNDS_H
#define ULFM_WORKAROUNDS_H

#include <stdbool.h>
#include <time.h>

static inline double monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* After MPI_Init, with fault tolerance enabled: checks that the structures are those the
 * work-arounds know, and that libmpi calls them; switches them off where not. */
void workarounds_verify(void);
/* enum shim_workarounds. */
int workarounds_state(void);
/* Frees what shim_park was given; from then on it takes nothing more. */
void parked_free(void);
/* From now on libmpi calls it wherever it waits; false where it knows no such functions. */
bool progress_enlist(int (*function)(void));
/* From now on no collective leaves a transfer behind; false where libmpi is not the known one. */
bool workarounds_guard_requests(void);
/* From now on no agreement loses groups; false where libmpi is not the known one. */
bool workarounds_free_groups(void);
/* libpmix's own function; it is loaded before anybody calls us, though perhaps not for everybody to
 * see. Ends the program where there is none of that name. */
void *pmix_own(const char *name);

#endif
