/* A fourth defect of Open MPI 5.0.11's ULFM, worked around: once any process is known to be dead,
 * every agreement, of every communicator, loses two groups. It makes each with OBJ_NEW and then
 * passes it where ompi_group_range_incl() and ompi_group_intersection() return a new one. A vote a
 * step cost survivors 200 bytes a step for the rest of the run, and two entries of the table of
 * Fortran handles.
 *
 * Cure: the two functions are wrapped by definitions of the same name, as in ompi_workarounds.c.
 * Called from the agreement, and from nowhere else, they free the group that would be lost.
 */
#define _GNU_SOURCE
#include "workarounds.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Byte offset in ompi_group_t of 5.0.11, x86-64, no debug build. */
enum { GROUP_HANDLE = 0x18 };

typedef int (*range_function)(void *group, int count, int ranges[][3], void **made);
typedef int (*intersection_function)(void *first, void *second, void **made);

/* libmpi's own; weak so that the program links against other MPIs too. The agreement lies between
 * the first two. */
extern void mca_coll_ftagree_comm_query(void) __attribute__((weak));
extern void mca_coll_ftagree_era_comm_init(void) __attribute__((weak));
extern char ompi_group_f_to_c_table[] __attribute__((weak));

/* Ours, as libmpi sees them. */
int ompi_group_range_incl(void *group, int count, int ranges[][3], void **made);
int ompi_group_intersection(void *first, void *second, void **made);

static int (*set_item)(void *table, int index, void *value);
static bool verified;

static int handle_of(void *group)
{
    return *(int *)((char *)group + GROUP_HANDLE);
}

static bool is_agreement(void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    return verified && at >= (uintptr_t)&mca_coll_ftagree_comm_query &&
           at < (uintptr_t)&mca_coll_ftagree_era_comm_init;
}

/* A group that was constructed and nothing else. */
static void lose(void *group)
{
    int handle = handle_of(group);
    if ((void *)MPI_Group_f2c(handle) == group &&
        set_item(ompi_group_f_to_c_table, handle, NULL) == 0) {
        free(group);
    }
}

int ompi_group_range_incl(void *group, int count, int ranges[][3], void **made)
{
    static range_function own;
    if (own == NULL) {
        *(void **)&own = dlsym(RTLD_NEXT, "ompi_group_range_incl");
    }
    void *before = is_agreement(__builtin_return_address(0)) ? *made : NULL;
    int code = own(group, count, ranges, made);
    if (before != NULL && code == MPI_SUCCESS && *made != before) {
        lose(before);
    }
    return code;
}

int ompi_group_intersection(void *first, void *second, void **made)
{
    static intersection_function own;
    if (own == NULL) {
        *(void **)&own = dlsym(RTLD_NEXT, "ompi_group_intersection");
    }
    void *before = is_agreement(__builtin_return_address(0)) ? *made : NULL;
    int code = own(first, second, made);
    if (before != NULL && code == MPI_SUCCESS && *made != before) {
        lose(before);
    }
    return code;
}

/* A group's handle is where we expect it? */
bool workarounds_free_groups(void)
{
    *(void **)&set_item = dlsym(RTLD_DEFAULT, "opal_pointer_array_set_item");
    MPI_Group group = MPI_GROUP_NULL;
    if (&mca_coll_ftagree_comm_query == NULL || &mca_coll_ftagree_era_comm_init == NULL ||
        ompi_group_f_to_c_table == NULL || set_item == NULL ||
        MPI_Comm_group(MPI_COMM_SELF, &group) != MPI_SUCCESS) {
        return false;
    }
    verified = handle_of((void *)group) == MPI_Group_c2f(group);
    MPI_Group_free(&group);
    return verified;
}
