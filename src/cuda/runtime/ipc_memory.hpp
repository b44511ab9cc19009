// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc that other ranks reach, where the driver does not share handles of virtual
// memory: in other processes by CUDA IPC, in threads of this process by peer access.
//
// Freeing memory that another process still has open is undefined. The maker therefore has the
// reading end of a pipe, and everybody that opens the memory a writing end, which is closed after
// the memory, or by the death of the process. Memory that others still have open when its maker is
// done with it is freed later, when memory is made or freed the next time.
#pragma once

#include "cuda/runtime/peer_memory.hpp"

namespace perseid::internal::cuda {

// As PeerMemory::make and map, for other processes.
Status make_ipc_memory(std::shared_ptr<const Gpu> gpu, size_t bytes,
                       std::unique_ptr<PeerMemory>* memory, PeerOffer* offer);
Status map_ipc_memory(std::shared_ptr<const Gpu> gpu, PeerOffer offer,
                      std::unique_ptr<PeerMemory>* memory);

// For threads of this process. It is freed when all of them are done with it.
Status make_plain_memory(std::shared_ptr<const Gpu> gpu, size_t bytes,
                         std::unique_ptr<PeerMemory>* memory, PeerOffer* offer);
Status map_plain_memory(std::shared_ptr<const Gpu> gpu, const PeerOffer& offer,
                        std::unique_ptr<PeerMemory>* memory);

}  // namespace perseid::internal::cuda
