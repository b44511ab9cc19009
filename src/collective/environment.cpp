// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which rank this process is, as a launcher says in the environment.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "collective/rendezvous.hpp"

namespace perseid::internal::collective {
namespace {

// Where a launcher says rank and size.
struct Launcher {
  const char *name, *rank, *size;
};
constexpr Launcher kLaunchers[] = {
    {"perseid launch", "PERSEID_RANK", "PERSEID_WORLD_SIZE"},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE"},
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status read_number(const char* name, int32_t least, int32_t most, int32_t* number) {
  const std::string text = variable(name);
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *number);
  if (parsed.ec == std::errc{} && parsed.ptr == end && least <= *number && *number <= most)
    return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, name, " is \"", text,
                       "\", expected a number from ", least, " to ", most);
}

// A folder of this user alone, by a name that all of the user's processes know.
Status private_folder(std::string* path) {
  const std::string runtime = variable("XDG_RUNTIME_DIR");
  *path = runtime.empty() ? concatenate("/tmp/perseid-", geteuid()) : runtime + "/perseid";
  struct stat found {};
  const bool made = ::mkdir(path->c_str(), S_IRWXU) == 0 || errno == EEXIST;
  if (made && ::lstat(path->c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
      found.st_uid == geteuid() && (found.st_mode & (S_IRWXG | S_IRWXO)) == 0)
    return {};
  return Status::error(PERSEID_IO_ERROR, "the folder ", *path,
                       " is not this user's alone; set PERSEID_RENDEZVOUS to unix:PATH or ",
                       "tcp:HOST:PORT");
}

// mpirun tells ranks nothing but a name of the job, which is enough on one host; MPI is needed for
// several.
Status rendezvous_of_openmpi(RankIdentity* identity) {
  const std::string job = variable("PMIX_NAMESPACE");
  if (job.empty() || job.find('/') != std::string::npos ||
      variable("OMPI_COMM_WORLD_LOCAL_SIZE") != variable("OMPI_COMM_WORLD_SIZE")) {
    identity->rendezvous = "mpi:openmpi";
    return {};
  }
  std::string folder;
  if (Status status = private_folder(&folder); !status.ok()) return status;
  identity->rendezvous = concatenate("unix:", folder, "/", job);
  return {};
}

// torchrun's own store is at the port.
Status rendezvous_of_torchrun(RankIdentity* identity) {
  int32_t port = 0;
  if (Status status = read_number("MASTER_PORT", 1, 65534, &port); !status.ok()) return status;
  const std::string host = variable("MASTER_ADDR");
  identity->rendezvous = host.find(':') == std::string::npos
                             ? concatenate("tcp:", host, ":", port + 1)
                             : concatenate("tcp:[", host, "]:", port + 1);
  return {};
}

std::string numeric(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = "";
  const int error = getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

// What this host sends from to hosts that no other route leads to, "" without such a route. Not
// that of a bridge to containers, which may come first among the interfaces.
std::string address_of_default_route() {
  // Addresses of documentation, to which nothing is sent: connecting a datagram socket only looks
  // for the route.
  for (const char* const anywhere : {"192.0.2.1", "2001:db8::1"}) {
    addrinfo wanted{};
    wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    wanted.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(anywhere, "9", &wanted, &found) != 0) continue;
    const Descriptor socket(
        above_standard_streams(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
    sockaddr_storage own{};
    auto* const end = reinterpret_cast<sockaddr*>(&own);
    socklen_t size = sizeof own;
    const bool routed = socket.opened() &&
                        ::connect(socket.number(), found->ai_addr, found->ai_addrlen) == 0 &&
                        ::getsockname(socket.number(), end, &size) == 0;
    freeaddrinfo(found);
    if (routed) return numeric(end);
  }
  return "";
}

// Whether other hosts may reach this one by the address of the interface.
bool is_reachable(const ifaddrs& interface) {
  constexpr unsigned kWanted = IFF_UP | IFF_RUNNING;  // a bridge without members does not run
  if ((interface.ifa_flags & kWanted) != kWanted || (interface.ifa_flags & IFF_LOOPBACK) != 0 ||
      interface.ifa_addr == nullptr)
    return false;
  if (interface.ifa_addr->sa_family == AF_INET6)
    return !IN6_IS_ADDR_LINKLOCAL(
        &reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr)->sin6_addr);
  if (interface.ifa_addr->sa_family != AF_INET) return false;
  const uint32_t address =
      ntohl(reinterpret_cast<const sockaddr_in*>(interface.ifa_addr)->sin_addr.s_addr);
  return address >> 16 != 0xa9fe;  // 169.254.0.0/16: link-local
}

// Port 0 would be any that is free, which no other rank knows.
Status check_port(const std::string& rendezvous) {
  constexpr int64_t kLastPort = 65535;
  const std::string text = rendezvous.substr(rendezvous.rfind(':') + 1);
  int64_t port = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, port);
  if (parsed.ptr != end || (parsed.ec == std::errc{} && 1 <= port && port <= kLastPort)) return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous is \"", rendezvous,
                       "\", expected a port from 1 to ", kLastPort);
}

}  // namespace

std::string host_of_environment() {
  std::string address = variable("PERSEID_ADDRESS");
  ifaddrs* all = nullptr;
  if (address.empty()) address = address_of_default_route();
  if (!address.empty() || ::getifaddrs(&all) != 0) return address;
  // IPv4 first.
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* each = all; each != nullptr && address.empty(); each = each->ifa_next)
      if (is_reachable(*each) && each->ifa_addr->sa_family == family)
        address = numeric(each->ifa_addr);
  ::freeifaddrs(all);
  return address;
}

bool names_host() { return !variable("PERSEID_ADDRESS").empty(); }

Status check_environment() {
  const auto check = [](const char* name, std::initializer_list<const char*> values,
                        const char* expected) {
    const std::string value = variable(name);
    const bool known =
        value.empty() || std::find(values.begin(), values.end(), value) != values.end();
    return known ? Status()
                 : Status::error(PERSEID_INVALID_ARGUMENT, name, " is \"", value, "\", expected ",
                                 expected);
  };
  Status status = check("PERSEID_SHARED_MEMORY", {"0", "1"}, "0 or 1");
  if (status.ok())
    status = check("PERSEID_TRANSPORT", {"mpi", "sockets", "nccl"}, "mpi, sockets or nccl");
  return status;
}

bool shares_memory_of_environment() { return variable("PERSEID_SHARED_MEMORY") != "0"; }

Status identity_of_environment(bool with_rendezvous, RankIdentity* identity) {
  const Launcher* launcher = nullptr;
  for (const Launcher& candidate : kLaunchers)
    if (launcher == nullptr && std::getenv(candidate.rank) != nullptr) launcher = &candidate;
  if (launcher == nullptr)
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "no ranks were started: PERSEID_RANK is not set; start the program with "
                         "perseid launch -n N -- PROGRAM, mpirun or torchrun, or set PERSEID_RANK, "
                         "PERSEID_WORLD_SIZE, PERSEID_RENDEZVOUS and PERSEID_TOKEN");
  if (Status status = read_number(launcher->size, 1, kMostRanks, &identity->size); !status.ok())
    return status;
  if (Status status = read_number(launcher->rank, 0, identity->size - 1, &identity->rank);
      !status.ok())
    return status;
  if (!with_rendezvous) return {};
  identity->token = variable("PERSEID_TOKEN");
  identity->rendezvous = variable("PERSEID_RENDEZVOUS");
  if (!identity->rendezvous.empty() || identity->size == 1) return {};
  if (std::strcmp(launcher->name, "MPICH") == 0) identity->rendezvous = "mpi:mpich";
  if (!identity->rendezvous.empty()) return {};
  if (std::strcmp(launcher->name, "OpenMPI") == 0) return rendezvous_of_openmpi(identity);
  if (std::strcmp(launcher->name, "torchrun") == 0) return rendezvous_of_torchrun(identity);
  return Status::error(PERSEID_INVALID_ARGUMENT,
                       "PERSEID_RENDEZVOUS is not set, expected unix:PATH or tcp:HOST:PORT, or "
                       "mpi:openmpi or mpi:mpich");
}

Status check_identity(const RankIdentity& identity) {
  if (identity.size < 1 || identity.size > kMostRanks)
    return Status::error(PERSEID_INVALID_ARGUMENT, "size is ", identity.size, ", expected 1 to ",
                         kMostRanks, " ranks");
  if (identity.rank < 0 || identity.rank >= identity.size)
    return Status::error(PERSEID_INVALID_ARGUMENT, "rank is ", identity.rank, ", expected 0 to ",
                         identity.size - 1);
  if (identity.token.size() > kLongestToken)
    return Status::error(PERSEID_INVALID_ARGUMENT, "the token has ", identity.token.size(),
                         " bytes, expected at most ", kLongestToken);
  // A Unix socket is the user's alone; whoever reaches the host reaches a port.
  if (identity.size > 1 && identity.rendezvous.starts_with("tcp:") && identity.token.empty())
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "a rendezvous by TCP needs a token; set PERSEID_TOKEN to the same secret "
                         "on all ranks");
  return identity.rendezvous.starts_with("tcp:") ? check_port(identity.rendezvous) : Status();
}

}  // namespace perseid::internal::collective
