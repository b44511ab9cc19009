// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun has started find one another through MPI: it says who they are and hands their
// addresses round, and is not used again. The library links no MPI. It loads libperseid_openmpi or
// libperseid_mpich (mpi_plugin.cpp), one for each ABI, when a rendezvous asks for it.
#pragma once

#include "collective/rendezvous.hpp"

namespace perseid::internal::collective {

// A rendezvous of this form is not a place, but a kind of MPI.
inline constexpr const char* kMpiRendezvous = "mpi:";

// Fills rank and size, and meets. place->rendezvous is "mpi:openmpi" or "mpi:mpich". A size that is
// given must be that of MPI, as must the rank.
Status meet_by_mpi(Place* place, Clock::time_point deadline, std::vector<Descriptor>* sockets);

}  // namespace perseid::internal::collective
