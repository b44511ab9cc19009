// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/copy_queue.hpp"

#include <utility>

#include "math/chunks.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr const char* kAdvice =
    "work before it may have failed, or a pointer is not of this device; see what nvidia-smi says";

constexpr size_t kLargestPitch = 0x7fffffff;  // that the driver takes
// Rows of so many bytes are copies of their own.
constexpr int64_t kLeastRun = 64 << 10;

// Dimensions of a copy, those that lie without gaps in both tensors as one. The elements of the
// last one lie side by side.
struct Extents {
  int32_t rank = 0;
  int64_t size[4], from[4], to[4];

  void add(int64_t size_of_dim, int64_t stride_from, int64_t stride_to) {
    size[rank] = size_of_dim;
    from[rank] = stride_from;
    to[rank] = stride_to;
    ++rank;
  }
};

Extents merged(const Tensor& from, const Tensor& to) {
  Extents merged;
  for (int32_t d = 0; d < from.rank; ++d) {
    if (from.shape[d] == 1) continue;
    const int32_t last = merged.rank - 1;
    if (last >= 0 && merged.from[last] == from.shape[d] * from.stride[d] &&
        merged.to[last] == to.shape[d] * to.stride[d]) {
      merged.size[last] *= from.shape[d];
      merged.from[last] = from.stride[d];
      merged.to[last] = to.stride[d];
    } else {
      merged.add(from.shape[d], from.stride[d], to.stride[d]);
    }
  }
  // A column is rows of one element.
  const int32_t last = merged.rank - 1;
  if (last < 0 || merged.from[last] != 1 || merged.to[last] != 1) merged.add(1, 1, 1);
  return merged;
}

DeviceAddress address_of(const Tensor& tensor, int64_t element) {
  return reinterpret_cast<DeviceAddress>(tensor.as<std::byte>() + element * size_of(tensor.dtype));
}

}  // namespace

bool is_copyable(const Tensor& tensor) {
  if (tensor.elements() == 0) return true;
  for (int32_t d = tensor.rank - 1; d >= 0; --d)
    if (tensor.shape[d] > 1) return tensor.stride[d] == 1;
  return true;
}

Status copy_tensor(const Gpu& gpu, const Tensor& from, const Tensor& to, void* stream) {
  if (from.elements() == 0) return {};
  const PeerDriver* driver = nullptr;
  if (Status status = load_peer_driver(&driver); !status.ok()) return status;
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  const auto handle = static_cast<StreamHandle>(stream);
  const auto element = static_cast<size_t>(size_of(from.dtype));
  const Extents extents = merged(from, to);
  const int32_t rows = extents.rank - 2;
  const auto width = static_cast<size_t>(extents.size[extents.rank - 1]) * element;
  int64_t times = 1;
  for (int32_t d = 0; d < rows; ++d) times *= extents.size[d];
  Result result = kSuccess;
  for (int64_t i = 0; i < times && result == kSuccess; ++i) {
    int64_t source_at = 0, target_at = 0, left = i;
    for (int32_t d = rows - 1; d >= 0; --d) {
      const int64_t index = left % extents.size[d];
      left /= extents.size[d];
      source_at += index * extents.from[d];
      target_at += index * extents.to[d];
    }
    const DeviceAddress source = address_of(from, source_at), target = address_of(to, target_at);
    if (rows < 0) {
      result = gpu.driver().copy(target, source, width, handle);
      continue;
    }
    RowsCopy copy;
    copy.from.device = source;
    copy.from.pitch = static_cast<size_t>(extents.from[rows]) * element;
    copy.to.device = target;
    copy.to.pitch = static_cast<size_t>(extents.to[rows]) * element;
    copy.row_bytes = width;
    copy.rows = static_cast<size_t>(extents.size[rows]);
    if (max(copy.from.pitch, copy.to.pitch) <= kLargestPitch) {
      result = driver->copy_rows(&copy, handle);
      continue;
    }
    for (size_t row = 0; row < copy.rows && result == kSuccess; ++row)
      result = gpu.driver().copy(target + row * copy.to.pitch, source + row * copy.from.pitch,
                                 width, handle);
  }
  return check(gpu.driver(), result, "copying between GPUs", kAdvice);
}

Status find_capture(const Gpu& gpu, void* stream, bool* capturing) {
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  const PeerDriver* driver = nullptr;
  if (Status status = load_peer_driver(&driver); !status.ok()) return status;
  int32_t state = 0;
  const Result result = driver->stream_capturing(static_cast<StreamHandle>(stream), &state);
  *capturing = state != 0;
  return check(gpu.driver(), result, "reading the state of a stream", kAdvice);
}

Status refuse_capture(const Gpu& gpu, const char* operation, void* stream) {
  bool capturing = false;
  if (Status status = find_capture(gpu, stream, &capturing); !status.ok()) return status;
  if (!capturing) return {};
  return Status::error(PERSEID_UNSUPPORTED, operation,
                       ": the stream is being captured, but each execution has an epoch of its "
                       "own; call it outside of graphs");
}

Status CopyQueue::make(std::shared_ptr<const Gpu> gpu, std::unique_ptr<CopyQueue>* queue) {
  const PeerDriver* driver = nullptr;
  if (Status status = load_peer_driver(&driver); !status.ok()) return status;
  std::unique_ptr<CopyQueue> made(new CopyQueue(std::move(gpu), *driver));
  const Gpu::Current current(*made->gpu_);
  if (!current.status().ok()) return current.status();
  Result result = driver->stream_create(&made->stream_, kNonBlockingStream);
  for (EventHandle* event : {&made->mark_, &made->end_})
    if (result == kSuccess) result = made->gpu_->driver().event_create(event, kEventWithoutTiming);
  Status status = check(made->gpu_->driver(), result, "making a stream of the GPU", kAdvice);
  if (status.ok()) *queue = std::move(made);
  return status;
}

CopyQueue::~CopyQueue() {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return;
  for (EventHandle event : {mark_, end_})
    if (event != nullptr) gpu_->driver().event_destroy(event);
  if (stream_ != nullptr) driver_.stream_destroy(stream_);
}

Status CopyQueue::follow(void* stream) {
  Status status = mark(stream);
  return status.ok() ? follow_mark() : status;
}

Status CopyQueue::mark(void* stream) {
  return check(gpu_->driver(),
               gpu_->driver().event_record(mark_, static_cast<StreamHandle>(stream)),
               "ordering streams of the GPU", kAdvice);
}

Status CopyQueue::follow_mark() {
  const Status status = flush();
  return status.ok() ? pass_mark(stream_) : status;
}

Status CopyQueue::pass_mark(void* stream) {
  return check(gpu_->driver(),
               driver_.stream_wait_event(static_cast<StreamHandle>(stream), mark_, 0),
               "ordering streams of the GPU", kAdvice);
}

Status CopyQueue::precede(void* stream) {
  if (Status status = flush(); !status.ok()) return status;
  Result result = gpu_->driver().event_record(end_, stream_);
  if (result == kSuccess)
    result = driver_.stream_wait_event(static_cast<StreamHandle>(stream), end_, 0);
  return check(gpu_->driver(), result, "ordering streams of the GPU", kAdvice);
}

Status CopyQueue::defer(WordOperation::Type type, const uint32_t* word, uint32_t epoch) {
  static_assert(kWaitReached == 0);  // and 0 writes after all writes before
  if (Status status = flush_copies(); !status.ok()) return status;
  operations_[words_++] = {
      .type = type, .address = reinterpret_cast<DeviceAddress>(word), .word = epoch};
  return words_ == kMostDeferred ? flush_words() : Status();
}

Status CopyQueue::defer_wait(const uint32_t* word, uint32_t epoch) {
  return defer(WordOperation::Type::kWait, word, epoch);
}

Status CopyQueue::defer_write(uint32_t* word, uint32_t epoch) {
  return defer(WordOperation::Type::kWrite, word, epoch);
}

Status CopyQueue::defer_copy(const Tensor& from, const Tensor& to) {
  if (from.elements() == 0) return {};
  const Extents extents = merged(from, to);
  const bool rows = extents.rank > 1;
  const int64_t bytes = extents.size[extents.rank - 1] * size_of(from.dtype);
  if (driver_.copy_batch == nullptr || extents.rank > 2 || (rows && bytes < kLeastRun)) {
    if (Status status = flush(); !status.ok()) return status;
    return copy_tensor(*gpu_, from, to, stream_);
  }
  Status status = flush_words();
  for (int64_t i = 0; status.ok() && i < (rows ? extents.size[0] : 1); ++i) {
    from_[copies_] = address_of(from, rows ? i * extents.from[0] : 0);
    to_[copies_] = address_of(to, rows ? i * extents.to[0] : 0);
    bytes_[copies_] = static_cast<size_t>(bytes);
    if (++copies_ == kMostDeferred) status = flush_copies();
  }
  return status;
}

Status CopyQueue::flush() {
  const Status status = flush_words();
  return status.ok() ? flush_copies() : status;
}

Status CopyQueue::flush_words() {
  if (words_ == 0) return {};
  const auto count = static_cast<uint32_t>(std::exchange(words_, 0));
  const Result result = driver_.word_operations(stream_, count, operations_, 0);
  return check(gpu_->driver(), result, "waiting for words of the GPU and writing some", kAdvice);
}

Status CopyQueue::flush_copies() {
  if (copies_ == 0) return {};
  CopyAttributes attributes;
  size_t first = 0, failed = 0;
  const Result result = driver_.copy_batch(to_, from_, bytes_, std::exchange(copies_, 0),
                                           &attributes, &first, 1, &failed, stream_);
  return check(gpu_->driver(), result, "copying between GPUs", kAdvice);
}

Status CopyQueue::wait_word(const uint32_t* word, uint32_t epoch) {
  if (Status status = flush(); !status.ok()) return status;
  const Result result =
      driver_.stream_wait_word(stream_, reinterpret_cast<DeviceAddress>(word), epoch, kWaitReached);
  return check(gpu_->driver(), result, "waiting for a word of the GPU", kAdvice);
}

Status CopyQueue::write_word(uint32_t* word, uint32_t epoch) {
  if (Status status = flush(); !status.ok()) return status;
  const Result result =
      gpu_->driver().write_word(stream_, reinterpret_cast<DeviceAddress>(word), epoch, 0);
  return check(gpu_->driver(), result, "writing a word of the GPU", kAdvice);
}

Status CopyQueue::copy(const Tensor& from, const Tensor& to) {
  const Status status = defer_copy(from, to);
  return status.ok() ? flush() : status;
}

Status CopyQueue::synchronize() {
  if (Status status = flush(); !status.ok()) return status;
  return check(gpu_->driver(), gpu_->driver().stream_synchronize(stream_), "work of the GPU",
               kAdvice);
}

}  // namespace perseid::internal::cuda
