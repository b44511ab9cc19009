// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How processes find one another: in the end every two of them have a connection.
//
// Every rank listens at an address of its own. Rank 0 listens at the rendezvous, where the others
// tell it their addresses and learn all of them; or a callback of the caller hands them round. Then
// each rank connects to those below it and accepts those above it. A connection begins with a
// Hello, whose token is checked before anything else. A stranger is refused; silent ones delay the
// ranks by a tenth of a second for every 64 of them. Ranks that have met by TCP and are on one host
// meet once more, by Unix sockets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collective/socket.hpp"

namespace perseid::internal::collective {

// A rank that wants to join.
struct RankIdentity {
  int32_t rank = 0, size = 1;
  std::string rendezvous;  // "unix:PATH" or "tcp:HOST:PORT"
  std::string token;
};

// From the environment: PERSEID_RANK, PERSEID_WORLD_SIZE, PERSEID_RENDEZVOUS and PERSEID_TOKEN,
// else the variables of OpenMPI, torchrun or MPICH. Rendezvous and token where they are needed.
Status identity_of_environment(bool with_rendezvous, RankIdentity* identity);
// Refuses values of PERSEID_SHARED_MEMORY and PERSEID_TRANSPORT that say nothing.
Status check_environment();
// False: PERSEID_SHARED_MEMORY=0 asks to treat ranks as if each were on a host of its own.
bool shares_memory_of_environment();
// What the ranks of a host have in common and those of others have not: PERSEID_HOSTID, else what
// its kernel says; "": this rank shares nothing with any.
std::string host_id_of_environment();
// An address that other hosts may reach this one by: PERSEID_ADDRESS, else that of the default
// route, else of the first interface that is up and more than link-local; "" where there is none.
std::string host_of_environment();
bool names_host();  // whether it is PERSEID_ADDRESS
// The sizes and lengths that it may have.
Status check_identity(const RankIdentity& identity);

// sockets[r]: to rank r; none to this one.
Status meet(const RankIdentity& identity, Clock::time_point deadline,
            std::vector<Descriptor>* sockets);

// Gives every rank what each of them brings, in the order of ranks; the same number of bytes from
// each. False: it failed.
using AllGather = std::function<bool(const void* mine, size_t bytes, void* all)>;
// `address`: where this rank is to listen, as local_address() says; "": at a Unix socket where all
// ranks are on one host, else at host_of_environment().
Status meet(int32_t rank, int32_t size, const std::string& address, const AllGather& all_gather,
            Clock::time_point deadline, std::vector<Descriptor>* sockets);

// The same of ranks of one host, by Unix sockets. It calls all_gather once.
Status meet_on_host(int32_t rank, int32_t size, const AllGather& all_gather,
                    Clock::time_point deadline, std::vector<Descriptor>* sockets);

}  // namespace perseid::internal::collective
