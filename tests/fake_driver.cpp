// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU: what the library calls of it, with host memory for the device's, and
// kernels that do nothing. Any call can be made to fail, once or from then on (fake_driver.hpp).
#include "fake_driver.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_streams.hpp"

namespace {

constexpr int kInvalidContext = 201, kOutOfMemory = 2, kNotSupported = 801;

std::mutex mutex;
char failing[64] = "";
int failure = 0, countdown = 0;
bool for_ever = false;
std::atomic<int64_t> calls{0}, contexts{0}, launches{0};
std::atomic<int64_t> blocks[8];  // of the last launches
FakeTensorMap maps[16];          // the last
size_t made_maps = 0;
// What was made and not destroyed. Never freed itself: what a lost device held is no leak of the
// library's.
std::set<void*>& alive = *new std::set<void*>;
std::vector<float>& elapsed = *new std::vector<float>;  // what events will say, the next one last
thread_local void* current = nullptr;
char context;  // its address is a handle
std::atomic<void*> captured{nullptr};

// What a call returns.
int outcome(const char* name) {
  ++calls;
  const std::lock_guard lock(mutex);
  const bool any = std::strcmp(failing, "*") == 0 && std::strcmp(name, "cuCtxPushCurrent_v2") != 0;
  if (!any && std::strcmp(failing, name) != 0) return 0;
  if (countdown > 0 && --countdown > 0) return 0;
  const int result = failure;
  if (!for_ever) failing[0] = '\0';
  return result;
}

void* keep(size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const std::lock_guard lock(mutex);
  alive.insert(memory);
  return memory;
}

int made(const char* name, void** handle) {
  const int result = outcome(name);
  if (result != 0) return result;
  *handle = keep(1);
  return 0;
}

int gone(const char* name, void* handle) {
  {
    const std::lock_guard lock(mutex);
    if (alive.erase(handle) == 0) std::abort();  // destroyed twice, or never made
  }
  std::free(handle);
  return outcome(name);
}

// ---- Memory that processes share ----

constexpr size_t kSharedBytes = 2 << 20;  // and more can be shared
std::atomic<int64_t> mappings{0};

struct SharedMemory {
  int file = -1;
  size_t bytes = 0;
};
// Of allocations, and of what was opened, by address.
std::map<void*, SharedMemory>& shared = *new std::map<void*, SharedMemory>;

void* map_file(int file, size_t bytes, void* at = nullptr) {
  void* data = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at == nullptr ? 0 : MAP_FIXED),
                    file, 0);
  return data == MAP_FAILED ? nullptr : data;
}
// As a GPU's memory, not initialised.
int make_file(size_t bytes) {
  const int file = memfd_create("fake GPU", MFD_CLOEXEC);
  void* data = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map_file(file, bytes)
                                                                            : nullptr;
  if (data == nullptr) return -1;
  std::memset(data, 0xaa, bytes);
  munmap(data, bytes);
  return file;
}
int add_shared(int file, size_t bytes, uint64_t* address) {
  void* data = file < 0 ? nullptr : map_file(file, bytes);
  if (data == nullptr) return kOutOfMemory;
  ++mappings;
  const std::lock_guard lock(mutex);
  shared[data] = {file, bytes};
  *address = reinterpret_cast<uint64_t>(data);
  return 0;
}
// Whether there was such memory.
bool remove_shared(uint64_t address, bool of_maker) {
  void* data = reinterpret_cast<void*>(address);
  const std::lock_guard lock(mutex);
  const auto found = shared.find(data);
  if (found == shared.end()) return false;
  const auto [file, bytes] = found->second;
  // Those that open it hold a lock: freeing what is open is undefined.
  if (of_maker && flock(file, LOCK_EX | LOCK_NB) != 0) std::abort();
  munmap(data, bytes);
  close(file);
  shared.erase(found);
  --mappings;
  return true;
}
struct IpcHandle {
  pid_t process;
  int file;
  size_t bytes;
  char rest[48];
};
static_assert(sizeof(IpcHandle) == 64);

// ---- Work of streams ----

void copy_rows(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch, size_t bytes,
               size_t rows, void* stream) {
  const auto copy = [=](const std::byte* source) {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(reinterpret_cast<std::byte*>(to) + row * to_pitch, source + row * from_pitch,
                  bytes);
  };
  const auto* source = reinterpret_cast<const std::byte*>(from);
  if (rows == 0 || bytes == 0) return;
  if (fake::is_memory(source)) return fake::enqueue(stream, [=] { copy(source); });
  const std::vector<std::byte> taken(source, source + (rows - 1) * from_pitch + bytes);
  fake::enqueue(stream, [=] { copy(taken.data()); });
}

void write_word(void* stream, uint64_t to, uint32_t word) {
  fake::enqueue(stream,
                [=] { __atomic_store_n(reinterpret_cast<uint32_t*>(to), word, __ATOMIC_RELEASE); });
}

template <class Number>
int says(const char* name, Number* number, Number value) {
  *number = value;
  return outcome(name);
}

}  // namespace

extern "C" {

void fake_fail(const char* name, int result, int after, int ever) {
  const std::lock_guard lock(mutex);
  std::strncpy(failing, name, sizeof failing - 1);
  failure = result;
  countdown = after;
  for_ever = ever != 0;
}
int64_t fake_calls() { return calls; }
int64_t fake_alive() {
  const std::lock_guard lock(mutex);
  return static_cast<int64_t>(alive.size()) + contexts + mappings;
}
int64_t fake_launches() { return launches; }
FakeTensorMap fake_tensor_map(int64_t back) {
  const std::lock_guard lock(mutex);
  return maps[(made_maps - 1 - static_cast<size_t>(back)) % std::size(maps)];
}
// 0 of a launch that has not been.
int64_t fake_blocks(int64_t back) { return blocks[(launches + 7 - back) % 8]; }
void fake_elapsed(const float* milliseconds, int count) {
  const std::lock_guard lock(mutex);
  elapsed.assign(milliseconds, milliseconds + count);
  std::reverse(elapsed.begin(), elapsed.end());
}

void fake_capture(void* stream) { captured = stream; }

int cuInit(unsigned) { return outcome("cuInit"); }
int cuDriverGetVersion(int* version) { return says("cuDriverGetVersion", version, 13000); }
// NVRTC asks for a table of tools, and finds an empty one: its size in bytes.
int cuGetExportTable(const void** table, const void*) {
  static const uint64_t kBytes = sizeof kBytes;
  *table = &kBytes;
  return outcome("cuGetExportTable");
}
int cuGetErrorString(int, const char** text) {
  *text = "a fault that was asked for";
  return 0;
}
int cuDeviceGetCount(int* count) {
  const char* const asked = std::getenv("FAKE_GPUS");
  return says("cuDeviceGetCount", count, asked == nullptr ? 1 : std::atoi(asked));
}
int cuDeviceGet(int* device, int) { return says("cuDeviceGet", device, 0); }
int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Fake", static_cast<size_t>(size));
  return outcome("cuDeviceGetName");
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return says("cuDeviceGetAttribute", value,
              attribute == 75   ? 9
              : attribute == 76 ? 0
              : attribute == 97 ? 232448
                                : 64);
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  return says("cuDeviceTotalMem_v2", bytes, size_t{1} << 30);
}
int cuDevicePrimaryCtxRetain(void** handle, int) {
  const int result = says<void*>("cuDevicePrimaryCtxRetain", handle, &context);
  contexts += result == 0;
  return result;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  --contexts;
  return outcome("cuDevicePrimaryCtxRelease_v2");
}
int cuCtxGetCurrent(void** handle) { return says("cuCtxGetCurrent", handle, current); }
int cuCtxPushCurrent_v2(void* handle) {
  const int result = outcome("cuCtxPushCurrent_v2");
  if (result == 0) current = handle;
  return result;
}
int cuCtxPopCurrent_v2(void** handle) {
  *handle = current;
  current = nullptr;
  return outcome("cuCtxPopCurrent_v2");
}
int cuModuleLoadData(void** module, const void*) { return made("cuModuleLoadData", module); }
int cuModuleUnload(void* module) { return gone("cuModuleUnload", module); }
int cuModuleGetFunction(void** function, void* module, const char*) {
  return says("cuModuleGetFunction", function, module);
}
int cuFuncGetAttribute(int* value, int, void*) { return says("cuFuncGetAttribute", value, 32); }
int cuFuncSetAttribute(void*, int, int) { return outcome("cuFuncSetAttribute"); }
int cuTensorMapEncodeTiled(void*, int, uint32_t rank, void* data, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t*, const uint32_t*, int, int, int,
                           int) {
  {
    const std::lock_guard lock(mutex);
    FakeTensorMap& map = maps[made_maps++ % std::size(maps)];
    map.data = static_cast<const std::byte*>(data);
    map.rank = rank;
    std::copy_n(sizes, rank, map.size);
    std::copy_n(strides, rank - 1, map.stride);
  }
  return outcome("cuTensorMapEncodeTiled");
}
int cuLaunchKernelEx(const void* config, void*, void**, void**) {
  blocks[launches++ % 8] = *static_cast<const unsigned*>(config);
  return current == nullptr ? kInvalidContext : outcome("cuLaunchKernelEx");
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  const int result = outcome("cuMemAlloc_v2");
  if (result != 0) return result;
  if (bytes >= kSharedBytes) {
    const int added = add_shared(make_file(bytes), bytes, address);
    if (added == 0) fake::add_memory(reinterpret_cast<void*>(*address), bytes);
    return added;
  }
  void* const memory = keep(bytes);
  fake::add_memory(memory, bytes);
  *address = reinterpret_cast<uint64_t>(memory);
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  fake::remove_memory(reinterpret_cast<void*>(address));
  if (remove_shared(address, true)) return outcome("cuMemFree_v2");
  return gone("cuMemFree_v2", reinterpret_cast<void*>(address));
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = 4096;
  return says("cuMemGetInfo_v2", total, size_t{1} << 30);
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  const int result = outcome("cuMemcpyAsync");
  if (result == 0) copy_rows(to, bytes, from, bytes, bytes, 1, stream);
  return result;
}
int cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  const int result = outcome("cuMemHostAlloc");
  if (result == 0) *data = keep(bytes);
  return result;
}
int cuMemFreeHost(void* data) { return gone("cuMemFreeHost", data); }
int cuPointerGetAttribute(void* value, int, uint64_t address) {
  return says("cuPointerGetAttribute", static_cast<uint64_t*>(value), address);
}
int cuStreamWriteValue32_v2(void* stream, uint64_t to, uint32_t word, unsigned) {
  const int result = outcome("cuStreamWriteValue32_v2");
  if (result == 0) write_word(stream, to, word);
  return result;
}
int cuStreamSynchronize(void* stream) {
  fake::finish(stream);
  return outcome("cuStreamSynchronize");
}
int cuEventCreate(void** event, unsigned) { return made("cuEventCreate", event); }
int cuEventDestroy_v2(void* event) { return gone("cuEventDestroy_v2", event); }
int cuEventRecord(void* event, void* stream) {
  fake::record(event, stream);
  return outcome("cuEventRecord");
}
int cuEventSynchronize(void*) { return outcome("cuEventSynchronize"); }
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  float time = 1;
  {
    const std::lock_guard lock(mutex);
    if (!elapsed.empty()) {
      time = elapsed.back();
      elapsed.pop_back();
    }
  }
  return says("cuEventElapsedTime", milliseconds, time);
}

// What groups of GPUs use besides. Streams do their work at once. Handles of memory are those of
// files; addresses are reserved by mapping nothing.
int cuMemCreate(uint64_t* handle, size_t bytes, const void*, uint64_t) {
  const int result = outcome("cuMemCreate");
  if (result != 0) return result;
  auto* const file = static_cast<int*>(keep(sizeof(int)));
  *file = make_file(bytes);
  *handle = reinterpret_cast<uint64_t>(file);
  return *file < 0 ? kOutOfMemory : 0;
}
int cuMemRelease(uint64_t handle) {
  auto* const file = reinterpret_cast<int*>(handle);
  close(*file);
  return gone("cuMemRelease", file);
}
int cuMemExportToShareableHandle(void* to, uint64_t handle, int, uint64_t) {
  const int result = outcome("cuMemExportToShareableHandle");
  if (result == 0) *static_cast<int*>(to) = dup(*reinterpret_cast<int*>(handle));
  return result;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* number, int) {
  const int result = outcome("cuMemImportFromShareableHandle");
  if (result != 0) return result;
  auto* const file = static_cast<int*>(keep(sizeof(int)));
  *file = dup(static_cast<int>(reinterpret_cast<intptr_t>(number)));
  *handle = reinterpret_cast<uint64_t>(file);
  return 0;
}
int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, uint64_t) {
  const int result = outcome("cuMemAddressReserve");
  if (result != 0) return result;
  *address = reinterpret_cast<uint64_t>(
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ++mappings;
  return 0;
}
int cuMemAddressFree(uint64_t address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  --mappings;
  return outcome("cuMemAddressFree");
}
int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t handle, uint64_t) {
  const int result = outcome("cuMemMap");
  if (result != 0) return result;
  void* const at = reinterpret_cast<void*>(address);
  fake::add_memory(at, bytes);
  return map_file(*reinterpret_cast<int*>(handle), bytes, at) == nullptr ? kOutOfMemory : 0;
}
int cuMemUnmap(uint64_t address, size_t bytes) {
  fake::remove_memory(reinterpret_cast<void*>(address));
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
       -1, 0);
  return outcome("cuMemUnmap");
}
int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return outcome("cuMemSetAccess"); }
int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  return says("cuMemGetAllocationGranularity", bytes, kSharedBytes);
}
int cuIpcGetMemHandle(IpcHandle* handle, uint64_t address) {
  const int result = outcome("cuIpcGetMemHandle");
  const std::lock_guard lock(mutex);
  const SharedMemory& memory = shared.at(reinterpret_cast<void*>(address));
  *handle = {getpid(), memory.file, memory.bytes, {}};
  return result;
}
int cuIpcOpenMemHandle_v2(uint64_t* address, IpcHandle handle, unsigned) {
  const int result = outcome("cuIpcOpenMemHandle_v2");
  if (result != 0) return result;
  if (handle.process == getpid()) return kInvalidContext;
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  flock(file, LOCK_SH);
  return add_shared(file, handle.bytes, address);
}
int cuIpcCloseMemHandle(uint64_t address) {
  if (!remove_shared(address, false)) std::abort();
  return outcome("cuIpcCloseMemHandle");
}
int cuCtxEnablePeerAccess(void*, unsigned) { return outcome("cuCtxEnablePeerAccess"); }
int cuStreamWaitValue32_v2(void* stream, uint64_t word, uint32_t epoch, unsigned) {
  const int result = outcome("cuStreamWaitValue32_v2");
  if (result != 0) return result;
  return fake::wait_word(stream, reinterpret_cast<uint32_t*>(word), epoch) ? 0 : kNotSupported;
}
struct WordOperation {
  uint32_t type;
  uint64_t address, word;
  uint32_t flags;
  uint64_t alias, unused;
};
int cuStreamBatchMemOp_v2(void* stream, unsigned count, const void* operations, unsigned) {
  const int result = outcome("cuStreamBatchMemOp_v2");
  const auto* words = static_cast<const WordOperation*>(operations);
  constexpr uint32_t kWrite = 2;
  for (unsigned i = 0; result == 0 && i < count; ++i) {
    const auto word = static_cast<uint32_t>(words[i].word);
    if (words[i].type == kWrite) {
      write_word(stream, words[i].address, word);
    } else if (!fake::wait_word(stream, reinterpret_cast<uint32_t*>(words[i].address), word)) {
      return kNotSupported;
    }
  }
  return result;
}
int cuStreamCreate(void** stream, unsigned) { return made("cuStreamCreate", stream); }
int cuStreamDestroy_v2(void* stream) { return gone("cuStreamDestroy_v2", stream); }
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  fake::wait_event(stream, event);
  return outcome("cuStreamWaitEvent");
}
int cuStreamIsCapturing(void* stream, int* capturing) {
  return says("cuStreamIsCapturing", capturing, stream != nullptr && stream == captured ? 1 : 0);
}
struct RowsOfMemory {
  size_t x, y;
  uint32_t type;
  const void* host;
  uint64_t device;
  void* array;
  size_t pitch;
};
struct RowsOfBoth {
  RowsOfMemory from, to;
  size_t bytes, rows;
};
int cuMemcpy2DAsync_v2(const void* copy, void* stream) {
  const auto& rows = *static_cast<const RowsOfBoth*>(copy);
  const int result = outcome("cuMemcpy2DAsync_v2");
  if (result == 0)
    copy_rows(rows.to.device, rows.to.pitch, rows.from.device, rows.from.pitch, rows.bytes,
              rows.rows, stream);
  return result;
}
int cuMemcpyBatchAsync(const uint64_t* to, const uint64_t* from, const size_t* bytes, size_t count,
                       const void*, const size_t*, size_t, size_t*, void* stream) {
  const int result = outcome("cuMemcpyBatchAsync");
  for (size_t i = 0; result == 0 && i < count; ++i)
    copy_rows(to[i], bytes[i], from[i], bytes[i], bytes[i], 1, stream);
  return result;
}

}  // extern "C"
