/* What shim.c needs of ompi_workarounds.c. */
#ifndef ULFM_WORKAROUNDS_H
#define ULFM_WORKAROUNDS_H

/* After MPI_Init, with fault tolerance enabled: checks that the structures are those the
 * work-arounds know, and that libmpi calls them; switches them off where not. */
void workarounds_verify(void);
/* enum shim_workarounds. */
int workarounds_state(void);

#endif
