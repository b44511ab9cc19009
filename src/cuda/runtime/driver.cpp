// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/driver.hpp"

#include "cuda/runtime/ipc_driver.hpp"
#include "cuda/runtime/library.hpp"

namespace perseid::internal::cuda {
namespace {

// cuLaunchKernelEx, clusters and tensor maps.
constexpr int32_t kOldestVersion = 12000;

struct Loaded {
  Driver driver{};
  Status status;
};

Status find_functions(SharedLibrary& library, Driver& driver) {
  library.find("cuInit", &driver.init);
  library.find("cuDriverGetVersion", &driver.version);
  library.find("cuGetErrorString", &driver.error_string);
  library.find("cuDeviceGetCount", &driver.device_count);
  library.find("cuDeviceGet", &driver.device_get);
  library.find("cuDeviceGetName", &driver.device_name);
  library.find("cuDeviceGetAttribute", &driver.device_attribute);
  library.find("cuDeviceTotalMem_v2", &driver.device_memory);
  library.find("cuDevicePrimaryCtxRetain", &driver.context_retain);
  library.find("cuDevicePrimaryCtxRelease_v2", &driver.context_release);
  library.find("cuCtxGetCurrent", &driver.context_current);
  library.find("cuCtxPushCurrent_v2", &driver.context_push);
  library.find("cuCtxPopCurrent_v2", &driver.context_pop);
  library.find("cuModuleLoadData", &driver.module_load);
  library.find("cuModuleUnload", &driver.module_unload);
  library.find("cuModuleGetFunction", &driver.module_function);
  library.find("cuFuncGetAttribute", &driver.function_attribute);
  library.find("cuFuncSetAttribute", &driver.function_set);
  library.find("cuTensorMapEncodeTiled", &driver.encode_map);
  library.find("cuLaunchKernelEx", &driver.launch);
  library.find("cuMemAlloc_v2", &driver.allocate);
  library.find("cuMemFree_v2", &driver.free);
  library.find("cuMemGetInfo_v2", &driver.memory_info);
  library.find("cuMemcpyAsync", &driver.copy);
  library.find("cuMemHostAlloc", &driver.host_allocate);
  library.find("cuMemFreeHost", &driver.host_free);
  library.find("cuPointerGetAttribute", &driver.pointer_attribute);
  library.find("cuStreamWriteValue32_v2", &driver.write_word);
  library.find("cuStreamSynchronize", &driver.stream_synchronize);
  library.find("cuEventCreate", &driver.event_create);
  library.find("cuEventDestroy_v2", &driver.event_destroy);
  library.find("cuEventRecord", &driver.event_record);
  library.find("cuEventSynchronize", &driver.event_synchronize);
  library.find("cuEventElapsedTime", &driver.event_elapsed);
  return library.result();
}

Status open_library(SharedLibrary& library) {
  return library.open("the NVIDIA driver", "install the GPU's driver, or use kDLCPU",
                      {"libcuda.so.1", "libcuda.so"});
}

Loaded load() {
  Loaded loaded;
  SharedLibrary library;
  loaded.status = open_library(library);
  if (loaded.status.ok()) loaded.status = find_functions(library, loaded.driver);
  if (!loaded.status.ok()) return loaded;

  const Driver& driver = loaded.driver;
  const Result started = driver.init(0);
  if (started == kNoDevice) {
    loaded.status = Status::error(PERSEID_UNSUPPORTED, "the NVIDIA driver sees no GPU; use kDLCPU");
    return loaded;
  }
  loaded.status = check(driver, started, "starting the NVIDIA driver", "see what nvidia-smi says");
  if (!loaded.status.ok()) return loaded;
  int32_t version = 0;
  driver.version(&version);
  if (version < kOldestVersion)
    loaded.status = Status::error(PERSEID_UNSUPPORTED, "the NVIDIA driver supports CUDA ",
                                  version / 1000, ".", version % 1000 / 10, ", expected ",
                                  kOldestVersion / 1000, ".0 or newer; update the driver");
  return loaded;
}

struct LoadedPeerDriver {
  PeerDriver driver{};
  Status status;
};

LoadedPeerDriver load_peer() {
  LoadedPeerDriver loaded;
  SharedLibrary library;
  if (loaded.status = open_library(library); !loaded.status.ok()) return loaded;
  PeerDriver& driver = loaded.driver;
  library.find("cuMemCreate", &driver.create);
  library.find("cuMemRelease", &driver.release);
  library.find("cuMemExportToShareableHandle", &driver.export_handle);
  library.find("cuMemImportFromShareableHandle", &driver.import_handle);
  library.find("cuMemAddressReserve", &driver.reserve);
  library.find("cuMemAddressFree", &driver.unreserve);
  library.find("cuMemMap", &driver.map);
  library.find("cuMemUnmap", &driver.unmap);
  library.find("cuMemSetAccess", &driver.set_access);
  library.find("cuMemGetAllocationGranularity", &driver.granularity);
  library.find("cuStreamCreate", &driver.stream_create);
  library.find("cuStreamDestroy_v2", &driver.stream_destroy);
  library.find("cuStreamWaitEvent", &driver.stream_wait_event);
  library.find("cuStreamWaitValue32_v2", &driver.stream_wait_word);
  library.find("cuStreamBatchMemOp_v2", &driver.word_operations);
  library.find("cuStreamIsCapturing", &driver.stream_capturing);
  library.find("cuMemcpy2DAsync_v2", &driver.copy_rows);
  loaded.status = library.result();
  library.find("cuMemcpyBatchAsync", &driver.copy_batch);
  return loaded;
}

struct LoadedIpcDriver {
  IpcDriver driver{};
  Status status;
};

LoadedIpcDriver load_ipc() {
  LoadedIpcDriver loaded;
  SharedLibrary library;
  if (loaded.status = open_library(library); !loaded.status.ok()) return loaded;
  IpcDriver& driver = loaded.driver;
  library.find("cuIpcGetMemHandle", &driver.get_handle);
  library.find("cuIpcOpenMemHandle_v2", &driver.open_handle);
  library.find("cuIpcCloseMemHandle", &driver.close_handle);
  library.find("cuCtxEnablePeerAccess", &driver.enable_peer);
  loaded.status = library.result();
  return loaded;
}

}  // namespace

Status load_ipc_driver(const IpcDriver** driver) {
  static const LoadedIpcDriver kLoaded = load_ipc();
  *driver = &kLoaded.driver;
  return kLoaded.status;
}

Status load_peer_driver(const PeerDriver** driver) {
  static const LoadedPeerDriver kLoaded = load_peer();
  *driver = &kLoaded.driver;
  return kLoaded.status;
}

Status load_driver(const Driver** driver) {
  static const Loaded kLoaded = load();
  *driver = &kLoaded.driver;
  return kLoaded.status;
}

Status check(const Driver& driver, Result result, const char* what, const char* advice) {
  if (result == kSuccess) return {};
  const char* text = nullptr;
  if (driver.error_string(result, &text) != kSuccess || text == nullptr) text = "unknown error";
  const bool memory = result == kOutOfMemory;
  return Status::error(memory ? PERSEID_OUT_OF_MEMORY : PERSEID_DEVICE_ERROR, what,
                       " failed: ", text, " (CUDA error ", result, "); ",
                       memory ? "free memory of the device" : advice);
}

}  // namespace perseid::internal::cuda
