// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/gpu_rank.hpp"

#include <algorithm>

#include "base/blocked_signals.hpp"
#include "collective/transport.hpp"
#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::collective {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 500us;  // of the thread that watches, while operations are in flight
// The same while none is: an operation that begins and does not end wakes nobody.
constexpr auto kIdleInterval = 50ms;
// Kernels wait so much longer than the thread, which knows who is missing.
constexpr uint64_t kGrace = 500'000'000;
// What NCCL gets to hear of its end.
constexpr auto kAborting = 5ms;
// How long exchanges wait for room where no operation starts.
constexpr auto kPatience = 10ms;
constexpr auto kPoll = 20us;
// What a failed operation gets to drain.
constexpr auto kDraining = 5s;
constexpr const char* kAdvice = "see what nvidia-smi says";

}  // namespace

GpuRank::GpuRank(Group& group, std::shared_ptr<cuda::Gpu> gpu)
    : group_(group),
      gpu_(std::move(gpu)),
      links_(NcclLinks::carry(group) ? group.nccl() : nullptr),
      slots_(kSlots),
      first_(group.first_epoch() - 1),
      submitted_(first_),
      enqueued_(first_),
      awaited_(first_),
      told_(first_),
      timed_(first_) {}

Status GpuRank::of(Group& group, const Operation& operation, std::shared_ptr<cuda::Gpu> gpu,
                   GpuRank** rank) {
  std::shared_ptr<GpuRank> made = group.gpu_rank();
  Status status;
  if (made == nullptr) {
    made.reset(new GpuRank(group, gpu));
    status = made->make(operation);
  } else if (made->gpu_->facts().index != gpu->facts().index) {
    status = Status::error(PERSEID_UNSUPPORTED, operation.name, ": the group has plans on another ",
                           "GPU; use one GPU for each rank of a group");
  }
  // Within an operation it would be too late: loading waits until none is in flight.
  if (status.ok()) status = cuda::prepare_waits(*gpu);
  // One rank that fails makes all fail: what follows are exchanges.
  if (status = group.exchange(operation, status, "", nullptr); !status.ok()) return status;
  *rank = made.get();
  group.gpu_rank() = std::move(made);
  return {};
}

Status GpuRank::make(const Operation& operation) {
  Status status = cuda::prepare_waits(*gpu_);
  for (std::unique_ptr<cuda::CopyQueue>* queue : {&sending_, &ending_, &control_})
    if (status.ok()) status = cuda::CopyQueue::make(gpu_, queue);
  if (status.ok() && links_ != nullptr) status = cuda::CopyQueue::make(gpu_, &crossing_);
  if (status.ok()) {
    const cuda::Gpu::Current current(*gpu_);
    void* memory = nullptr;
    const cuda::Result result =
        gpu_->driver().host_allocate(&memory, sizeof(Words), cuda::kPortableMapped);
    status =
        cuda::check(gpu_->driver(), result, "allocating page-locked memory of the host", kAdvice);
    if (status.ok()) {
      words_ = static_cast<Words*>(memory);
      *words_ = {};
      words_->started = words_->completed = first_;
    }
  }
  // One rank that fails makes all fail.
  if (status = group_.exchange(operation, status, "", nullptr); !status.ok()) return status;
  status = make_words(operation);
  constexpr uint32_t kNotAborted = 0;
  if (status.ok())
    status = cuda::copy(*gpu_, abort_word(), &kNotAborted, sizeof kNotAborted, nullptr);
  if (!status.ok()) return status;
  gpu_->add_reachable(words_, sizeof *words_);
  gpu_->add_reachable(abort_word(), sizeof(uint32_t));
  gpu_->wait_reports().observers().add(this);
  const BlockedSignals blocked;
  thread_ = std::thread([this] { watch(); });
  return {};
}

Status GpuRank::make_words(const Operation& operation) {
  constexpr size_t kWords = 2 * kMostRanks;
  const auto make = [&](Group& group) {
    return GpuWindows::make(group, operation, gpu_, kWords * sizeof(uint32_t), kWords, first_,
                            &slab_);
  };
  if (links_ == nullptr) return make(group_);
  // The same on all ranks of the host.
  if (links_->host() != nullptr && !make(*links_->host()).ok()) links_->leave_host();
  const Status status = links_->host() != nullptr ? Status() : own_words_.make(gpu_, kWords, 0);
  return group_.exchange(operation, status, "", nullptr);
}

GpuRank::~GpuRank() {
  acknowledge();
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  gpu_->wait_reports().observers().remove(this);
  gpu_->remove_reachable(words_);
  if (slab_ != nullptr || own_words_.words() != nullptr) gpu_->remove_reachable(abort_word());
  const cuda::Gpu::Current current(*gpu_);
  if (words_ != nullptr && current.status().ok()) gpu_->driver().host_free(words_);
}

// ---- Operations ----

Status GpuRank::begin(const Operation& operation, const Work& work) {
  const cuda::Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  std::unique_lock lock(mutex_);
  while (in_flight() >= kSlots && !out_of_step_) {
    if (failed_) return group_.failure(operation);
    changed_.wait_for(lock, kInterval);
    out_of_step_ = in_flight() >= kSlots && Clock::now() >= operation.deadline;
  }
  // The others count this operation. Those in flight end well.
  if (out_of_step_)
    return Status::error(PERSEID_TIMEOUT, operation.name, ": rank ", group_.rank(), ", this one, ",
                         "has left out an operation, as ", kSlots, " were in flight until its ",
                         "deadline; shrink the group to go on, and synchronize the stream more ",
                         "often");
  const uint32_t number = ++submitted_;
  slot(number) = {.name = operation.name, .deadline_ns = operation.deadline_ns, .work = work};
  slot(number).work.parts_epoch = work.epoch;
  words_->reports[number % kSlots] = {};
  awaited_ = enqueued_;
  lock.unlock();
  return sending_->mark(work.stream);
}

void GpuRank::join(uint32_t* local, int64_t count, const Parts& parts, uint32_t epoch) {
  const std::lock_guard lock(mutex_);
  Work& work = slot(submitted_).work;
  work.local = local;
  work.local_count = count;
  work.parts = parts;
  work.parts_epoch = epoch;
}

Status GpuRank::announce() {
  const uint32_t number = submitted_;
  Status status = sending_->follow_mark();
  if (status.ok()) status = sending_->defer_write(&words_->started, number);
  if (links_ == nullptr) {
    return status.ok() ? sending_->defer_write(begun_word(group_.rank()), number) : status;
  }
  // Exchanges wait for room, which may need the thread.
  wake();
  if (status.ok()) status = sending_->flush();
  return status.ok() ? crossing_->follow(sending_->stream()) : status;
}

Status GpuRank::follow_last(void* stream) {
  return in_flight() == 0 ? Status() : ending_->pass_mark(stream);
}

Status GpuRank::defer_await(int32_t rank) {
  return sending_->defer_wait(ended_word(group_.rank(), rank), awaited_);
}

Status GpuRank::await(int32_t rank) {
  return sending_->wait_word(ended_word(group_.rank(), rank), awaited_);
}

// The thread ends an operation that has started. One that has not may wait for whatever the caller
// enqueues next.
Status GpuRank::await_room(const Operation& operation) const {
  Clock::time_point started = Clock::now();
  while (!links_->has_room()) {
    if (cpu::load_acquire(group_.abort()) != 0) return group_.failure(operation);
    if (epoch_reached(cpu::load_acquire(&words_->started), completed() + 1)) {
      started = Clock::now();
    } else if (Clock::now() - started > kPatience) {
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return {};
}

Status GpuRank::watching(cuda::CopyQueue** queue) {
  Status status;
  if (watching_ == nullptr) status = cuda::CopyQueue::make(gpu_, &watching_);
  *queue = watching_.get();
  return status;
}

Status GpuRank::end(void* stream, bool reported) {
  // None has begun: nobody would wait before the memory of what is written is gone.
  if (enqueued_ == submitted_) return {};
  const cuda::Gpu::Current current(*gpu_);
  Status status = sending_->precede(stream);
  if (status.ok() && crossing_ != nullptr) status = crossing_->precede(stream);
  if (status.ok() && reported && watching_ != nullptr) status = watching_->precede(stream);
  if (status.ok()) status = ending_->follow(stream);
  // The next operation begins after this one, also on another stream.
  if (status.ok()) status = ending_->pass_mark(sending_->stream());
  enqueued_ = submitted_;
  group_.for_each_other([&](int32_t rank) {
    if (status.ok() && in_slab(rank) >= 0)
      status = ending_->defer_write(ended_word(rank, group_.rank()), enqueued_);
  });
  // Nothing of the operation writes into memory of another rank any more.
  if (status.ok()) status = ending_->defer_write(&words_->completed, enqueued_);
  if (status.ok()) status = ending_->flush();
  wake();
  return status;
}

perseid_arrival GpuRank::arrival(const Operation& operation, const uint32_t* signals,
                                 uint32_t epoch) const {
  auto arrival = sized<perseid_arrival>();
  arrival.signals = signals;
  arrival.epoch = epoch;
  arrival.deadline_ns = operation.deadline_ns + kGrace;
  arrival.abort = abort_word();
  arrival.record = reinterpret_cast<perseid_wait_record*>(&words_->reports[submitted_ % kSlots]);
  return arrival;
}

void GpuRank::drain() {
  std::unique_lock lock(mutex_);
  if (words_ == nullptr) return;
  // The thread ends what does not end by itself, but for a device that is lost.
  uint64_t longest = 0;
  for (uint32_t number = completed() + 1; number != submitted_ + 1; ++number)
    longest = std::max(longest, slot(number).deadline_ns);
  const auto end = cpu::deadline_after(longest) + kDraining;
  while (in_flight() > 0 && Clock::now() < end) changed_.wait_for(lock, kInterval);
  read_reports();  // while there is what the slots point to
}

void GpuRank::acknowledge() {
  drain();
  std::vector<void*> streams;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) return;
    for (uint32_t number = submitted_ - kept() + 1; number != submitted_ + 1; ++number) {
      slot(number).reported = true;
      streams.push_back(slot(number).work.stream);
    }
  }
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  for (void* const stream : streams) gpu_->wait_reports().forget(stream);
}

// ---- Failures ----

void GpuRank::watch() {
  const cuda::Gpu::Current current(*gpu_);
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (has_news()) tell_begun();
    if (in_flight() == 0) {
      // One that has ended by now has begun, too.
      asleep_ = true;
      changed_.wait_for(lock, kIdleInterval,
                        [&] { return ended_ || in_flight() > 0 || has_news(); });
      asleep_ = false;
      continue;
    }
    changed_.wait_for(lock, kInterval);
    check();
    if (in_flight() == 0) changed_.notify_all();
  }
  // A rank that leaves after its last operation is not the one that others miss in it.
  if (has_news()) tell_begun();
}

void GpuRank::check() {
  if (in_flight() == 0) return;
  if (failed_ || cpu::load_acquire(group_.abort()) != 0) return fail();
  const uint32_t next = completed() + 1;
  if (!epoch_reached(cpu::load_acquire(&words_->started), next)) return;
  if (timed_ != next) {
    timed_ = next;
    since_ = Clock::now();
  } else if (Clock::now() - since_ > std::chrono::nanoseconds(slot(next).deadline_ns)) {
    find_missing(slot(next));
    group_.blame(silent_rank(next));
    fail();
  }
}

void GpuRank::tell_begun() {
  told_ = cpu::load_acquire(&words_->started);
  group_.tell_begun(told_ - first_);
}

// It has the mutex until it sleeps.
void GpuRank::wake() {
  if (asleep_) changed_.notify_all();
}

void GpuRank::fail() {
  failed_ = true;
  for (uint32_t number = completed() + 1; number != submitted_ + 1; ++number) {
    Slot& each = slot(number);
    each.failed = true;
    if (each.owner < 0) find_missing(each);
  }
  (void)control_->write_word(abort_word(), 1);
  // Before the words behind exchanges that end without data.
  (void)control_->synchronize();
  if (NcclLinks::carry(group_)) {
    links_->abort();
    aborted_ = Clock::now();
  }
  // NCCL must not send what its queue waits for.
  if (links_ == nullptr || Clock::now() - aborted_ > kAborting) release_waits();
}

// The first chunk that has not arrived, beginning with the own ones.
void GpuRank::find_missing(Slot& slot) {
  const Work& work = slot.work;
  const int64_t count = work.chunks == nullptr ? 0 : work.chunks->count();
  const int64_t words = count == 0 ? 0 : work.chunks->words();
  if (count == 0) return find_missing_part(slot);
  const std::vector<uint32_t> signals = read_words(work.signals, static_cast<size_t>(words));
  const ChunkTable<int64_t> table{nullptr, count, work.chunks->pivot(group_.rank())};
  for (int64_t visit = 0; visit < words && slot.owner < 0; ++visit) {
    const int64_t chunk = table.chunk_of_visit(visit % count);
    slot.seen = signals[static_cast<size_t>(visit - visit % count + chunk)];
    if (epoch_reached(slot.seen, work.epoch)) continue;
    slot.chunk = chunk;
    slot.owner = work.chunks->owner(chunk);
  }
  if (slot.owner < 0) find_missing_part(slot);
}

void GpuRank::find_missing_part(Slot& slot) {
  const Parts& parts = slot.work.parts;
  if (parts.count == 0) return;
  const std::vector<uint32_t> words = read_words(parts.words, static_cast<size_t>(parts.count));
  for (int64_t i = 0; i < parts.count && slot.owner < 0; ++i) {
    slot.seen = words[static_cast<size_t>(i)];
    if (epoch_reached(slot.seen, slot.work.parts_epoch)) continue;
    slot.owner = (parts.rank + static_cast<int32_t>(i % parts.ranks)) % group_.size();
    if (parts.chunks > 0) slot.chunk = parts.first_chunk + min(i / parts.ranks, parts.chunks - 1);
  }
}

std::vector<uint32_t> GpuRank::begun() {
  std::vector<uint32_t> numbers;
  for (int32_t rank = 0; rank < group_.size(); ++rank)
    numbers.push_back(links_ == nullptr ? read_words(begun_word(rank), 1, submitted_).front()
                                        : first_ + cpu::load_acquire(&group_.words(rank).begun));
  return numbers;
}

// The rank that has begun the fewest operations; where all have begun this one, the owner of what
// is missing. Between hosts that may itself wait for one whose process has stopped.
int32_t GpuRank::silent_rank(uint32_t number) {
  const std::vector<uint32_t> begun = this->begun();
  int32_t silent = -1, behind = 0;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    const auto lag = static_cast<int32_t>(number - begun[static_cast<size_t>(rank)]);
    if (rank == group_.rank() || lag <= behind) continue;
    behind = lag;
    silent = rank;
  }
  if (silent >= 0) return silent;
  for (int32_t rank = 0; links_ != nullptr && rank < group_.size(); ++rank)
    if (rank != group_.rank() && !group_.answers(rank)) return rank;
  const int32_t owner = slot(number).owner;
  return owner >= 0 ? owner : group_.rank();
}

// Copies that run now write into memory of a group that has failed.
void GpuRank::release_waits() {
  for (int32_t rank = 0; rank < group_.size(); ++rank)
    if (in_slab(rank) >= 0) (void)control_->write_word(ended_word(group_.rank(), rank), submitted_);
  for (uint32_t number = completed() + 1; number != submitted_ + 1; ++number) {
    const Work& work = slot(number).work;
    for (int64_t i = 0; i < work.local_count; ++i)
      (void)control_->write_word(work.local + i, work.parts_epoch);
    for (int64_t i = 0; i < work.watched_count; ++i)
      (void)control_->write_word(work.watched + i, work.epoch);
  }
  (void)control_->synchronize();
}

std::vector<uint32_t> GpuRank::read_words(const uint32_t* words, size_t count,
                                          uint32_t otherwise) const {
  std::vector<uint32_t> values(count, otherwise);
  const auto address = [](const void* data) { return reinterpret_cast<cuda::DeviceAddress>(data); };
  const auto stream = static_cast<cuda::StreamHandle>(control_->stream());
  (void)gpu_->driver().copy(address(values.data()), address(words), count * sizeof(uint32_t),
                            stream);
  (void)control_->synchronize();
  return values;
}

Status GpuRank::failure(const Slot& slot) const {
  Operation operation(slot.name, slot.deadline_ns);
  return group_.failure(
      operation, slot.chunk < 0 ? "" : concatenate("; chunk ", slot.chunk, " has not arrived"));
}

// A kernel may have reported a failed wait before the thread noticed, if the process was stopped.
void GpuRank::read_reports() {
  for (uint32_t number = submitted_ - kept() + 1; number != submitted_ + 1; ++number) {
    Slot& each = slot(number);
    const cuda::WaitReport& report = words_->reports[number % kSlots];
    if (each.failed || __atomic_load_n(&report.status, __ATOMIC_ACQUIRE) == PERSEID_OK) continue;
    const cuda::Gpu::Current current(*gpu_);
    find_missing(each);
    if (cpu::load_acquire(group_.abort()) == 0) group_.blame(silent_rank(number));
    each.failed = true;
    fail();
  }
}

Status GpuRank::take(void* stream) {
  const std::lock_guard lock(mutex_);
  read_reports();
  Status first;
  for (uint32_t number = submitted_ - kept() + 1; number != submitted_ + 1; ++number) {
    Slot& each = slot(number);
    if (!each.failed || each.reported || each.work.stream != stream) continue;
    each.reported = true;
    if (!first.ok()) continue;
    first = failure(each);
    if (each.work.record != nullptr)
      *each.work.record = {first.code(),      group_.failed(),
                           each.work.operand, static_cast<int32_t>(each.chunk),
                           each.work.epoch,   each.seen};
  }
  return first;
}

}  // namespace perseid::internal::collective
