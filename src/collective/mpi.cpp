// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/mpi.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

namespace perseid::internal::collective {
namespace {

Status nobody_answered() {
  return Status::error(PERSEID_TIMEOUT,
                       "MPI has not answered before the deadline; does every rank ",
                       "open its group? MPI cannot be used by this process any more");
}

// The folder of this library, or of the program that holds it, with a slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&meet_by_mpi), &info) == 0) return "";
  std::string path = info.dli_fname;
  std::error_code error;
  // A program that the shell has found in PATH has no folder in its name.
  if (path.find('/') == std::string::npos)
    path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Status load(const std::string& kind, const perseid_mpi_functions** mpi) {
  if (kind != "openmpi" && kind != "mpich")
    return Status::error(PERSEID_INVALID_ARGUMENT, "the rendezvous is \"", kMpiRendezvous, kind,
                         "\", expected mpi:openmpi or mpi:mpich");
  const std::string name = concatenate("libperseid_", kind, ".so"), folder = own_folder();
  void* library = nullptr;
  std::string reason;
  // Beside the library, beside a program in bin, then where the system looks. MPI loads parts of
  // its own, which need its symbols: RTLD_GLOBAL.
  for (const std::string& path : {folder + name, folder + "../lib/" + name, name}) {
    if (library != nullptr) break;
    if (folder.empty() && path != name) continue;  // not relative to the working directory
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    // What is wrong with the one that is there, not that it is nowhere else.
    const char* const error = library == nullptr ? dlerror() : nullptr;
    if (error != nullptr && (reason.empty() || ::access(path.c_str(), F_OK) == 0)) reason = error;
  }
  if (library == nullptr)
    return Status::error(PERSEID_UNSUPPORTED, "cannot meet by MPI: ", reason, "; install ", kind,
                         " and build Perseid with its headers, or set "
                         "PERSEID_RENDEZVOUS to unix:PATH or tcp:HOST:PORT on all ranks");
  const auto functions = reinterpret_cast<decltype(&perseid_mpi)>(dlsym(library, "perseid_mpi"));
  const perseid_mpi_functions* const found = functions == nullptr ? nullptr : functions();
  if (found != nullptr && found->version == kPerseidMpiVersion) {
    *mpi = found;
    return {};
  }
  return Status::error(PERSEID_UNSUPPORTED, name, " is of another version of Perseid");
}

}  // namespace

Status meet_by_mpi(RankIdentity* identity, Clock::time_point deadline,
                   std::vector<Descriptor>* sockets, const perseid_mpi_functions** mpi) {
  if (Status status = load(identity->rendezvous.substr(std::strlen(kMpiRendezvous)), mpi);
      !status.ok())
    return status;
  int rank = 0, size = 0;
  const auto left = [&] {
    const auto rest = std::chrono::nanoseconds(deadline - Clock::now()).count();
    return static_cast<uint64_t>(rest > 0 ? rest : 0);
  };
  const int error = (*mpi)->open(left(), &rank, &size);
  if (error == kPerseidMpiLate) return nobody_answered();
  if (error != 0)
    return Status::error(PERSEID_IO_ERROR, "MPI cannot be initialised: error ", error,
                         "; was the program started by mpirun?");
  if (identity->size != 0 && (identity->size != size || identity->rank != rank))
    return Status::error(PERSEID_INVALID_ARGUMENT, "rank is ", identity->rank, " of ",
                         identity->size, ", and of MPI ", rank, " of ", size,
                         "; pass the same, or size 0");
  identity->rank = rank;
  identity->size = size;
  if (Status status = check_identity(*identity); !status.ok()) return status;
  int gathered = 0;
  const AllGather all_gather = [&](const void* mine, size_t bytes, void* all) {
    gathered = (*mpi)->all_gather(left(), mine, bytes, all);
    return gathered == 0;
  };
  Status status = meet(rank, size, "", all_gather, deadline, sockets);
  return gathered == kPerseidMpiLate ? nobody_answered() : status;
}

}  // namespace perseid::internal::collective
