// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What Perseid needs of MPI, compiled once for each ABI (mpi.hpp).
#include <mpi.h>

#include <cstddef>
#include <cstdlib>

extern "C" {

// Rank and size of MPI_COMM_WORLD. MPI is initialised unless the program has done so, and then
// finalised at exit. Returns 0, or MPI's error.
__attribute__((visibility("default"))) int perseid_mpi_open(int* rank, int* size) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) return MPI_ERR_OTHER;
  if (initialised == 0) {
    int provided = 0;
    // The program's own threads never call it.
    const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    if (error != MPI_SUCCESS) return error;
    // An error ends a call with a status, not the process.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::atexit([] {
      int ended = 0;
      MPI_Finalized(&ended);
      if (ended == 0) MPI_Finalize();
    });
  }
  const int error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return error != MPI_SUCCESS ? error : MPI_Comm_size(MPI_COMM_WORLD, size);
}

__attribute__((visibility("default"))) int perseid_mpi_all_gather(const void* mine, size_t bytes,
                                                                  void* all) {
  const int count = static_cast<int>(bytes);
  return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD);
}

}  // extern "C"
