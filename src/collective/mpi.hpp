// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun has started find one another through MPI: it says who they are and hands their
// addresses round. Where they share no memory, it carries their data too, unless the program has
// initialised it for fewer threads or the environment says otherwise. The library links no MPI. It
// loads libperseid_openmpi or libperseid_mpich (mpi_plugin.cpp), one for each ABI, when a
// rendezvous asks for it.
#pragma once

#include "collective/links.hpp"
#include "collective/mpi_plugin.hpp"
#include "collective/rendezvous.hpp"

namespace perseid::internal::collective {

// A rendezvous of this form is not a place, but a kind of MPI.
inline constexpr const char* kMpiRendezvous = "mpi:";

// Fills rank and size, and meets. identity->rendezvous is "mpi:openmpi" or "mpi:mpich". A size that
// is given must be that of MPI, as must the rank.
Status meet_by_mpi(RankIdentity* identity, Clock::time_point deadline,
                   std::vector<Descriptor>* sockets, const perseid_mpi_functions** mpi);

// What a rank says of the transport of data, before all ranks choose the same.
struct MpiOffer {
  bool usable = false;  // this rank can send its data by MPI
  uint32_t number = 0;  // of links; all take the largest that is offered

  std::string encode() const;
  static std::optional<MpiOffer> decode(std::string_view payload);
};
// `mpi` is null where the ranks have met otherwise. Fails where the environment asks for what this
// rank cannot do.
Status offer_mpi(const perseid_mpi_functions* mpi, MpiOffer* offer);
// Whether all offers are usable. Then *number is that of the links.
bool agree_on_mpi(const std::vector<std::string>& offers, uint32_t* number);
// Null: MPI refuses.
std::unique_ptr<Links> links_of_mpi(const perseid_mpi_functions& mpi, uint32_t number, int32_t rank,
                                    int32_t size);

}  // namespace perseid::internal::collective
