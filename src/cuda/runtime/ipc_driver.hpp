// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What groups of GPUs use of the driver where it does not share handles of virtual memory.
#pragma once

#include "cuda/runtime/driver.hpp"

namespace perseid::internal::cuda {

struct IpcHandle {
  char bytes[64] = {};
};

inline constexpr uint32_t kLazyPeerAccess = 1;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;

struct IpcDriver {
  Result (*get_handle)(IpcHandle* handle, DeviceAddress address);
  Result (*open_handle)(DeviceAddress* address, IpcHandle handle, uint32_t flags);
  Result (*close_handle)(DeviceAddress address);
  // Of the current context to memory of the other one.
  Result (*enable_peer)(ContextHandle other, uint32_t flags);
};

// As load_driver.
Status load_ipc_driver(const IpcDriver** driver);

}  // namespace perseid::internal::cuda
