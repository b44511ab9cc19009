// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What Perseid needs of MPI, as a plug-in gives it (mpi_plugin.cpp, compiled once for each ABI).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

struct perseid_mpi_links;

struct perseid_mpi_functions {
  uint32_t version;

  // These two return 0, MPI's error, or kPerseidMpiLate where MPI has not answered within
  // `nanoseconds`. open() is collective, gives rank and size of MPI_COMM_WORLD, and initialises MPI
  // unless the program has done so. It is then finalised at exit.
  int (*open)(uint64_t nanoseconds, int* rank, int* size);
  int (*all_gather)(uint64_t nanoseconds, const void* mine, size_t bytes, void* all);

  // Whether a thread of the library may call MPI while the program does other things. `*level`
  // names the level of threads that MPI was initialised with.
  int (*allows_threads)(const char** level);
  // Links (links.hpp) to all other ranks; null: MPI refuses. Those of the same number are
  // connected.
  perseid_mpi_links* (*connect)(uint32_t number);
  // Gives what was sent `nanoseconds` to arrive.
  void (*disconnect)(perseid_mpi_links* links, uint64_t nanoseconds);
  ssize_t (*send)(perseid_mpi_links* links, int rank, const iovec* parts, size_t count);
  ssize_t (*receive)(perseid_mpi_links* links, int rank, const iovec* parts, size_t count);
  // As in links.hpp. A rank that has found an end sends one too.
  void (*finish)(perseid_mpi_links* links, int rank);
  // Lets MPI work. Masks of ranks: which are readable, which take bytes, which MPI has lost.
  void (*progress)(perseid_mpi_links* links, uint64_t* readable, uint64_t* writable,
                   uint64_t* lost);
};

inline constexpr uint32_t kPerseidMpiVersion = 2;
inline constexpr int kPerseidMpiLate = -1;

extern "C" const perseid_mpi_functions* perseid_mpi();
