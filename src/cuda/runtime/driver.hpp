// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, opened at run time: the few functions and types that are used, declared here so
// that building needs nothing of CUDA. Their ABI is stable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace perseid::internal::cuda {

using Result = int32_t;
using DeviceNumber = int32_t;
using DeviceAddress = uint64_t;
using ContextHandle = struct ContextObject*;
using ModuleHandle = struct ModuleObject*;
using FunctionHandle = struct FunctionObject*;
using StreamHandle = struct StreamObject*;
using EventHandle = struct EventObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;

enum class DeviceAttribute : int32_t {
  kMultiprocessors = 16,
  kSharedBytesOfABlock = 97,  // that a kernel may ask for
  kL2CacheBytes = 38,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76
};
enum class FunctionAttribute : int32_t {
  kLocalBytes = 3,
  kRegisters = 4,
  kDynamicSharedBytes = 8,
  kLargeClusters = 14
};

enum class PointerAttribute : int32_t { kDevicePointer = 3 };
inline constexpr uint32_t kPortableMapped = 3;  // page-locked memory of all contexts, for devices

// What a tensor map says of the tensor and of its boxes in shared memory.
enum class MapType : int32_t { kU8 = 0, kF16 = 6, kF32 = 7, kBF16 = 9 };
enum class MapInterleave : int32_t { kNone = 0 };
enum class MapSwizzle : int32_t { kNone = 0, kBytes64 = 2, kBytes128 = 3 };
enum class MapPromotion : int32_t { kBytes128 = 2, kBytes256 = 3 };
enum class MapFill : int32_t { kZeros = 0 };

struct LaunchAttribute {
  enum class Id : int32_t {
    kCooperative = 2,
    kClusterDimension = 4,
    kProgrammaticSerialization = 6
  };
  Id id;
  int32_t padding = 0;
  union {
    uint32_t cluster[3];
    int32_t flag;
    char bytes[64];
  };
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

struct Driver {
  Result (*init)(uint32_t flags);
  Result (*version)(int32_t* version);
  Result (*error_string)(Result result, const char** text);
  Result (*device_count)(int32_t* count);
  Result (*device_get)(DeviceNumber* device, int32_t index);
  Result (*device_name)(char* name, int32_t length, DeviceNumber device);
  Result (*device_attribute)(int32_t* value, DeviceAttribute attribute, DeviceNumber device);
  Result (*device_memory)(size_t* bytes, DeviceNumber device);
  Result (*context_retain)(ContextHandle* context, DeviceNumber device);
  Result (*context_release)(DeviceNumber device);
  Result (*context_current)(ContextHandle* context);
  Result (*context_push)(ContextHandle context);
  Result (*context_pop)(ContextHandle* context);
  Result (*module_load)(ModuleHandle* module, const void* image);
  Result (*module_unload)(ModuleHandle module);
  Result (*module_function)(FunctionHandle* function, ModuleHandle module, const char* name);
  Result (*function_attribute)(int32_t* value, FunctionAttribute attribute, FunctionHandle);
  Result (*function_set)(FunctionHandle function, FunctionAttribute attribute, int32_t value);
  Result (*encode_map)(void* map, MapType type, uint32_t rank, void* address, const uint64_t* size,
                       const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* step,
                       MapInterleave, MapSwizzle, MapPromotion, MapFill);
  Result (*launch)(const LaunchConfig* config, FunctionHandle function, void** parameters,
                   void** extra);
  Result (*allocate)(DeviceAddress* address, size_t bytes);
  Result (*free)(DeviceAddress address);
  Result (*memory_info)(size_t* free, size_t* total);
  // Between host and device or within either, which the driver tells by the addresses.
  Result (*copy)(DeviceAddress to, DeviceAddress from, size_t bytes, StreamHandle stream);
  Result (*host_allocate)(void** data, size_t bytes, uint32_t flags);  // page-locked
  Result (*host_free)(void* data);
  Result (*pointer_attribute)(void* value, PointerAttribute attribute, DeviceAddress address);
  // After the work queued before; all of it is visible to whoever sees the word.
  Result (*write_word)(StreamHandle stream, DeviceAddress to, uint32_t word, uint32_t flags);
  Result (*stream_synchronize)(StreamHandle stream);
  Result (*event_create)(EventHandle* event, uint32_t flags);
  Result (*event_destroy)(EventHandle event);
  Result (*event_record)(EventHandle event, StreamHandle stream);
  Result (*event_synchronize)(EventHandle event);
  Result (*event_elapsed)(float* milliseconds, EventHandle start, EventHandle end);
};

// Opened and initialised at the first call; the same answer from then on.
Status load_driver(const Driver** driver);

// ---- What groups of GPUs use besides ----

using AllocationHandle = uint64_t;

enum class HandleType : int32_t { kDescriptor = 1 };  // a POSIX file descriptor
struct AllocationLocation {
  enum class Type : int32_t { kDevice = 1 };
  Type type = Type::kDevice;
  int32_t index = 0;
};
struct AllocationProperties {
  enum class Type : int32_t { kPinned = 1 };
  Type type = Type::kPinned;
  HandleType handle_types = HandleType::kDescriptor;
  AllocationLocation location;
  void* reserved = nullptr;
  uint8_t flags[8] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
struct AllocationAccess {
  enum class Flags : int32_t { kReadWrite = 3 };
  AllocationLocation location;
  Flags flags = Flags::kReadWrite;
};
static_assert(sizeof(AllocationAccess) == 12);

// A copy of `rows` rows. Offsets are 0.
struct RowsCopy {
  enum class Memory : uint32_t { kUnified = 4 };  // found by the address
  struct Side {
    size_t x = 0, y = 0;
    Memory memory = Memory::kUnified;
    const void* host = nullptr;
    DeviceAddress device = 0;
    void* array = nullptr;
    size_t pitch = 0;
  };
  Side from, to;
  size_t row_bytes = 0, rows = 0;
};
static_assert(sizeof(RowsCopy) == 128);

struct CopyAttributes {
  enum class SourceOrder : int32_t { kStream = 1 };
  SourceOrder order = SourceOrder::kStream;
  AllocationLocation hints[2] = {};  // of managed memory
  uint32_t flags = 1;                // prefers engines that leave the multiprocessors alone
};
static_assert(sizeof(CopyAttributes) == 24);

// One of several operations on words in the order of a stream.
struct WordOperation {
  enum class Type : uint32_t { kWait = 1, kWrite = 2 };
  Type type = Type::kWrite;
  DeviceAddress address = 0;
  uint64_t word = 0;   // 32 bits
  uint32_t flags = 0;  // kWaitReached, or after all writes
  DeviceAddress alias = 0;
  uint64_t unused[1] = {};
};
static_assert(sizeof(WordOperation) == 48);

inline constexpr uint32_t kNonBlockingStream = 1;
inline constexpr uint32_t kEventWithoutTiming = 2;
inline constexpr uint32_t kWaitReached = 0;  // as a difference, see epoch_reached

struct PeerDriver {
  Result (*create)(AllocationHandle* handle, size_t bytes, const AllocationProperties*,
                   uint64_t flags);
  Result (*release)(AllocationHandle handle);
  Result (*export_handle)(void* shared, AllocationHandle handle, HandleType, uint64_t flags);
  Result (*import_handle)(AllocationHandle* handle, void* shared, HandleType);
  Result (*reserve)(DeviceAddress* address, size_t bytes, size_t alignment, DeviceAddress wanted,
                    uint64_t flags);
  Result (*unreserve)(DeviceAddress address, size_t bytes);
  Result (*map)(DeviceAddress address, size_t bytes, size_t offset, AllocationHandle handle,
                uint64_t flags);
  Result (*unmap)(DeviceAddress address, size_t bytes);
  Result (*set_access)(DeviceAddress address, size_t bytes, const AllocationAccess*, size_t count);
  Result (*granularity)(size_t* bytes, const AllocationProperties*, int32_t option);
  Result (*stream_create)(StreamHandle* stream, uint32_t flags);
  Result (*stream_destroy)(StreamHandle stream);
  Result (*stream_wait_event)(StreamHandle stream, EventHandle event, uint32_t flags);
  Result (*stream_wait_word)(StreamHandle stream, DeviceAddress at, uint32_t word, uint32_t flags);
  Result (*stream_capturing)(StreamHandle stream, int32_t* capturing);
  Result (*copy_rows)(const RowsCopy* copy, StreamHandle stream);
  Result (*word_operations)(StreamHandle stream, uint32_t count, WordOperation* operations,
                            uint32_t flags);
  // Null in drivers before CUDA 12.8. Not for the default stream.
  Result (*copy_batch)(DeviceAddress* to, DeviceAddress* from, size_t* bytes, size_t count,
                       CopyAttributes* attributes, size_t* first_of_attributes,
                       size_t attributes_count, size_t* failed, StreamHandle stream);
};

// As load_driver.
Status load_peer_driver(const PeerDriver** driver);

// OK, or the driver's own words about a call: "`what` failed: ...; `advice`".
Status check(const Driver& driver, Result result, const char* what, const char* advice);

}  // namespace perseid::internal::cuda
