/* A library of MPI and its caller in one file each, from which `build.sh` makes the fixtures beside it. */
#ifdef LIBRARY
extern int opal_progress(int), poll_network(int);
/* no frame of its own: whom it was called by is in the link register alone */
__attribute__((noinline)) static int leaf(int number) {
    while (((volatile int *)&number)[0] > 0)
        ;
    return number;
}
int (*volatile completed)(int) = leaf;
__attribute__((noinline)) static int wait_for_all(int number) { return completed(opal_progress(number)) + 1; }
int MPI_Waitall(int number) { return wait_for_all(number); } /* a jump, as in MPICH 5.0 */
int MPI_Recv(int number) { return leaf(poll_network(opal_progress(number))) + 1; }
#else
extern int MPI_Waitall(int), MPI_Recv(int);
__attribute__((noinline)) int halo_exchange(int number) { return MPI_Waitall(number) + MPI_Recv(number) + 1; }
int time_step(int number) { return halo_exchange(number) + 1; }
#endif
