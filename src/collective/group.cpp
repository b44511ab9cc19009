// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/group.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/gpu_rank.hpp"
#include "op/chunks.hpp"

namespace perseid::internal::collective {
namespace {

constexpr std::chrono::seconds kOpeningTime{2};
// Longer ones would be negative as times. That of a kernel is somewhat longer.
constexpr uint64_t kLongestDeadline = uint64_t{1} << 62;

std::string milliseconds(uint64_t nanoseconds) {
  return concatenate(static_cast<double>(nanoseconds) / 1e6, " ms");
}

// How long a rank gets to say whom it waits for.
constexpr std::chrono::milliseconds kAnswerTime{200};
// How long one that has answered gets to name another one: longer than it takes to get no answer.
constexpr std::chrono::milliseconds kVerdictTime{300};

// What RankWords says of a wait.
constexpr size_t kWaitBytes = offsetof(RankWords, offset) + sizeof(RankWords::offset);

Status apart(const Operation& operation) {
  return Status::error(PERSEID_UNSUPPORTED, operation.name, ": the ranks share no memory");
}

uint64_t mask_of(const std::vector<int32_t>& ranks) {
  uint64_t mask = 0;
  for (const int32_t rank : ranks) mask |= bit(rank);
  return mask;
}

}  // namespace

Operation::Operation(const char* operation, uint64_t nanoseconds)
    : name(operation),
      deadline_ns(std::min(op::deadline_or_default(nanoseconds), kLongestDeadline)),
      deadline(cpu::deadline_after(deadline_ns)) {}

uint64_t Operation::time_left() const {
  const auto left = deadline - Clock::now();
  return left.count() > 0 ? static_cast<uint64_t>(left.count()) : 1;
}

Group::Group(std::shared_ptr<Mesh> mesh, std::vector<int32_t> members, uint32_t generation,
             const Options& options)
    : mesh_(std::move(mesh)),
      members_(std::move(members)),
      rank_(static_cast<int32_t>(std::find(members_.begin(), members_.end(), mesh_->rank()) -
                                 members_.begin())),
      generation_(generation),
      options_(options),
      epoch_(options.first_epoch - 1) {}

Group::~Group() {
  // What it has on the GPU ends before the others hear that this rank has left.
  gpu_exchange_.reset();
  gpu_rank_.reset();
  nccl_.reset();
  if (!superseded_) mesh_->leave(operations_);
}

size_t Group::slab_bytes(int32_t size) {
  const auto ranks = static_cast<size_t>(size);
  return sizeof(RankWords) + ranks * (sizeof(RankWords) + kInboxBytes);
}

void Group::prepare_slab(std::byte* slab) const {
  auto* words = reinterpret_cast<RankWords*>(slab + sizeof(RankWords));
  for (int32_t rank = 0; rank < size(); ++rank) words[rank].ready = words[rank].done = epoch_;
}

void Group::take_slab(std::shared_ptr<Segment> slab) {
  slab_ = std::move(slab);
  abort_ = reinterpret_cast<uint32_t*>(slab_->data());
  words_ = reinterpret_cast<RankWords*>(slab_->data() + sizeof(RankWords));
  inboxes_ = slab_->data() + (static_cast<size_t>(size()) + 1) * sizeof(RankWords);
  mesh_->watch({slab_, abort_, members_, generation_});
}

Status Group::open_slab(const Operation& operation) {
  std::shared_ptr<Segment> slab;
  Status status = share(
      operation, slab_bytes(size()), [this](std::byte* memory) { prepare_slab(memory); }, &slab);
  if (status.ok()) take_slab(std::move(slab));
  return status;
}

Status Group::open(std::shared_ptr<Mesh> mesh, const Operation& operation, const Options& options,
                   std::shared_ptr<Group>* group) {
  std::vector<int32_t> members(static_cast<size_t>(mesh->size()));
  std::iota(members.begin(), members.end(), 0);
  std::shared_ptr<Group> made(new Group(std::move(mesh), std::move(members), 0, options));
  Status status = made->open_slab(operation);
  // The ranks have no memory in common.
  if (status.code() == PERSEID_UNSUPPORTED) {
    status = made->connect_puts(operation);
    made->next_segment_ = 0;  // PutEngine takes segment 0 for the slab
    if (status.ok()) status = made->open_slab(operation);
  }
  if (status.ok()) *group = std::move(made);
  return status;
}

void Group::start_puts(std::unique_ptr<Links> links) {
  const std::weak_ptr<Mesh> mesh = mesh_;
  puts_ = std::make_shared<PutEngine>(rank_, std::move(links), [mesh](int32_t rank) {
    if (const std::shared_ptr<Mesh> watching = mesh.lock()) watching->give_up(rank);
  });
}

// Through MPI where all ranks can, else by sockets.
Status Group::connect_puts(const Operation& operation) {
  MpiOffer offer;
  std::vector<std::string> offers;
  std::unique_ptr<Links> links;
  Status status = offer_mpi(options_.mpi, &offer);
  status = exchange(operation, status, offer.encode(), &offers);
  if (!status.ok()) return status;
  if (uint32_t number = 0; agree_on_mpi(offers, &number)) {
    links = links_of_mpi(*options_.mpi, number, rank_, size());
    if (links == nullptr)
      status =
          Status::error(PERSEID_IO_ERROR, "MPI connects no ranks; set PERSEID_TRANSPORT=sockets");
  } else {
    status = connect_sockets(operation, &links);
  }
  status = exchange(operation, status, "", nullptr);
  if (status.ok()) start_puts(std::move(links));
  return status;
}

// By messages, as ranks may have met in any way.
Status Group::connect_sockets(const Operation& operation, std::unique_ptr<Links>* links) {
  Status failed;
  const AllGather all_gather = [&](const void* mine, size_t bytes, void* all) {
    std::vector<std::string> messages;
    failed = exchange(operation, {}, std::string(static_cast<const char*>(mine), bytes), &messages);
    for (size_t rank = 0; failed.ok() && rank < messages.size(); ++rank) {
      messages[rank].resize(bytes);
      std::memcpy(static_cast<char*>(all) + rank * bytes, messages[rank].data(), bytes);
    }
    return failed.ok();
  };
  std::vector<Descriptor> sockets;
  Status status =
      meet(rank_, size(), mesh_->local_address(), all_gather, operation.deadline, &sockets);
  if (status.ok()) *links = links_of_sockets(std::move(sockets));
  return failed.ok() ? status : failed;
}

Status Group::open_threads(int32_t size, const Options& options,
                           std::vector<std::shared_ptr<Group>>* groups) {
  const auto ranks = static_cast<size_t>(size);
  using Sockets = std::vector<std::vector<Descriptor>>;
  const auto connect = [&](Sockets* sockets) -> Status {
    sockets->resize(ranks);
    for (auto& of_rank : *sockets) of_rank.resize(ranks);
    for (size_t a = 0; a < ranks; ++a)
      for (size_t b = a + 1; b < ranks; ++b) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
          return Status::error(PERSEID_OUT_OF_MEMORY,
                               "cannot connect threads: ", std::strerror(errno),
                               "; make fewer ranks");
        (*sockets)[a][b] = Descriptor(above_standard_streams(pair[0]));
        (*sockets)[b][a] = Descriptor(above_standard_streams(pair[1]));
      }
    return {};
  };
  const bool shares = shares_memory_of_environment();
  Sockets sockets, puts;
  if (Status status = connect(&sockets); !status.ok()) return status;
  if (!shares)
    if (Status status = connect(&puts); !status.ok()) return status;
  const auto hub = std::make_shared<ThreadHub>();
  std::vector<int32_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  std::shared_ptr<Segment> slab;
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto mesh = std::make_shared<Mesh>(static_cast<int32_t>(rank), std::move(sockets[rank]), hub);
    std::shared_ptr<Group> group(new Group(std::move(mesh), members, 0, options));
    if (rank == 0 || !shares) {
      Descriptor unused;
      if (Status status = Segment::make(slab_bytes(size), &slab, &unused); !status.ok())
        return status;
      group->prepare_slab(slab->data());
    }
    if (!shares) {
      group->start_puts(links_of_sockets(std::move(puts[rank])));
      group->puts_->expose(0, 0, slab);
    }
    group->segments_[group->next_segment_++] = slab;
    group->take_slab(slab);
    groups->push_back(std::move(group));
  }
  return {};
}

void Group::fail(Failure failure, int32_t rank) {
  set_abort(abort_, failure, rank);
  // If there were several failures, the first counts.
  tell(cpu::load_acquire(abort_));
}

// Others may find out later, or not at all. A rank that leaves tells everybody itself, after which
// operation: others may still be in that one, and are to complete it.
void Group::tell(uint32_t abort) const {
  if (puts_ == nullptr || failure_of(abort) == Failure::kLeft || told_.exchange(true)) return;
  const Frame frame{FrameType::kAbort, generation_, Writer().number(abort, 4).take()};
  for_each_other(
      [&](int32_t other) { mesh_->send(origin(other), frame, Clock::now() + kAnswerTime); });
}

Status Group::lost(const Operation& operation, Failure failure, int32_t rank,
                   const std::string& detail) const {
  const std::string who = concatenate(operation.name, ": rank ", rank);
  const std::string next = detail + "; shrink the group to go on with the others";
  if (failure == Failure::kLost) return Status::error(PERSEID_PEER_LOST, who, " is lost", next);
  if (failure == Failure::kLeft)
    return Status::error(PERSEID_PEER_LOST, who, " has left the group", next);
  if (rank == rank_)
    return Status::error(PERSEID_TIMEOUT, who, ", this one, was given up by the others, whose ",
                         "deadline has passed", next);
  return Status::error(PERSEID_TIMEOUT, who, " has not taken part within ",
                       milliseconds(operation.deadline_ns), next);
}

Status Group::failure(const Operation& operation, const std::string& detail) const {
  const uint32_t value = cpu::load_acquire(abort_);
  tell(value);
  return lost(operation, failure_of(value), failed_rank(value), detail);
}

Status Group::exchange(const Operation& operation, const Status& mine, const std::string& message,
                       std::vector<std::string>* all, const Descriptor* descriptor,
                       std::vector<Descriptor>* descriptors) {
  if (cpu::load_acquire(abort_) != 0) return failure(operation);
  Status first;
  std::string payload = Writer()
                            .number(static_cast<uint32_t>(mine.code()), 4)
                            .text(mine.sentence())
                            .text(message)
                            .take();
  if (payload.size() > kLargestMessage)
    return Status::error(PERSEID_UNSUPPORTED, operation.name, ": the message of ", payload.size(),
                         " bytes is longer than ", kLargestMessage);
  const int sent = descriptor == nullptr ? -1 : descriptor->number();
  const Frame frame{sent < 0 ? FrameType::kMessage : FrameType::kSegment, generation_,
                    std::move(payload)};
  std::vector<std::string> messages(members_.size());
  std::vector<Descriptor> received(members_.size());
  for (int32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_) mesh_->send(origin(rank), frame, operation.deadline, sent);  // see take()
  for (int32_t rank = 0; rank < size(); ++rank) {
    Frame answer = frame;
    const Failure failure = rank == rank_
                                ? Failure::kNone
                                : mesh_->take(origin(rank), generation_, operation.deadline,
                                              &answer, &received[static_cast<size_t>(rank)]);
    if (failure != Failure::kNone) {
      fail(failure, rank);
      return this->failure(operation);
    }
    Reader reader(answer.payload);
    const auto code =
        static_cast<perseid_status>(std::min<uint64_t>(reader.number(4), PERSEID_INTERNAL));
    const std::string sentence(reader.text(kLargestMessage));
    messages[static_cast<size_t>(rank)] = reader.text(kLargestMessage);
    if (first.ok() && code != PERSEID_OK)
      first = Status::error(code, "rank ", rank, ": ", sentence);
  }
  if (first.ok() && all != nullptr) *all = std::move(messages);
  if (first.ok() && descriptors != nullptr) *descriptors = std::move(received);
  return first;
}

Status Group::share(const Operation& operation, size_t bytes,
                    const std::function<void(std::byte*)>& prepare,
                    std::shared_ptr<Segment>* segment) {
  if (cpu::load_acquire(abort_) != 0) return failure(operation);
  Status status = puts_ == nullptr ? map_segment(operation, bytes, prepare, segment)
                                   : copy_segment(operation, bytes, prepare, segment);
  if (!status.ok()) segment->reset();
  std::erase_if(segments_, [](const auto& each) { return each.second.expired(); });
  segments_[next_segment_++] = *segment;
  return status;
}

Status Group::copy_segment(const Operation& operation, size_t bytes,
                           const std::function<void(std::byte*)>& prepare,
                           std::shared_ptr<Segment>* segment) {
  Descriptor unused;
  const Status status = Segment::make(bytes, segment, &unused);
  if (status.ok()) {
    prepare((*segment)->data());
    puts_->expose(generation_, next_segment_, *segment);
  }
  // From here on others write.
  return exchange(operation, status, "", nullptr);
}

Status Group::map_segment(const Operation& operation, size_t bytes,
                          const std::function<void(std::byte*)>& prepare,
                          std::shared_ptr<Segment>* segment) {
  ThreadHub* hub = mesh_->hub();
  // The environment is asked once for each group.
  const bool may_share = slab_ != nullptr || shares_memory_of_environment();
  Status status;
  uint64_t number = 0;
  Descriptor descriptor;  // open until all have mapped it
  if (rank_ == 0) {
    status =
        may_share || hub != nullptr ? Segment::make(bytes, segment, &descriptor) : apart(operation);
    if (status.ok()) prepare((*segment)->data());
    SegmentPlace place;
    if (status.ok() && hub != nullptr) {
      const std::lock_guard lock(hub->mutex);
      place.inode = number = hub->next++;
      hub->segments[number] = *segment;
    } else if (status.ok()) {
      place = SegmentPlace::of(descriptor);
    }
    const Frame frame{FrameType::kSegment, generation_,
                      Writer()
                          .number(status.ok() ? 1 : 0)
                          .number(place.process)
                          .number(place.descriptor)
                          .number(place.device)
                          .number(place.inode)
                          .take()};
    const int sent = hub == nullptr ? descriptor.number() : -1;
    for (int32_t rank = 1; rank < size(); ++rank)
      mesh_->send(origin(rank), frame, operation.deadline, sent);
  } else {
    Frame frame;
    const Failure failure =
        mesh_->take(origin(0), generation_, operation.deadline, &frame, &descriptor);
    if (failure != Failure::kNone) {
      fail(failure, 0);
      return this->failure(operation);
    }
    Reader reader(frame.payload);
    const bool made = reader.number() == 1;
    SegmentPlace place;
    for (uint64_t* field : {&place.process, &place.descriptor, &place.device, &place.inode})
      *field = reader.number();
    if (made && hub != nullptr) {
      const std::lock_guard lock(hub->mutex);
      *segment = hub->segments[place.inode];
    } else if (made) {
      if (!descriptor.opened()) descriptor = place.open();
      status = descriptor.opened() && may_share ? Segment::map(descriptor, bytes, segment)
                                                : apart(operation);
    }  // else the exchange says why
  }
  status = exchange(operation, status, "", nullptr);
  if (hub != nullptr && rank_ == 0) {
    const std::lock_guard lock(hub->mutex);
    hub->segments.erase(number);
  }
  return status;
}

Status Group::shrink(const Operation& operation, std::shared_ptr<Group>* survivors) {
  uint64_t members = mask_of(members_);
  uint32_t generation = generation_;
  superseded_ = true;
  const bool failed = cpu::load_acquire(abort_) != 0;
  Clock::time_point deadline = operation.deadline;
  for (;;) {
    if (!mesh_->agree(members, generation, deadline, &members, &generation))
      return Status::error(PERSEID_PEER_LOST, operation.name, ": the others went on without rank ",
                           rank_, "; open a new group");
    std::vector<int32_t> left;
    for (int32_t rank = 0; rank < mesh_->size(); ++rank)
      if ((members >> rank & 1) != 0) left.push_back(rank);
    std::shared_ptr<Group> made(new Group(mesh_, std::move(left), generation, options_));
    made->puts_ = puts_;
    if (puts_ != nullptr) puts_->keep(members);
    // Ranks that were missing have used up the deadline.
    Operation opening = operation;
    opening.deadline = std::max(operation.deadline, Clock::now() + kOpeningTime);
    deadline = opening.deadline + kOpeningTime;  // of another round
    Status status = made->open_slab(opening);
    if (status.ok()) {
      *survivors = std::move(made);
      // Plans of this group are to be made again, also where it has not failed.
      set_abort(abort_, Failure::kLeft, rank_);
      // Who shrinks a group that has failed knows what became of its executions. Otherwise the next
      // synchronisation, of the smaller group's plans, would return that failure.
      if (failed && gpu_rank_ != nullptr) gpu_rank_->acknowledge();
      return {};
    }
    made->superseded_ = true;
    // Another rank was lost meanwhile, or has fallen silent since it agreed.
    const int32_t silent = made->failed();
    if (status.code() == PERSEID_TIMEOUT && silent >= 0 && silent != made->rank()) {
      mesh_->leave_behind(made->origin(silent), members, generation);
    } else if (status.code() != PERSEID_PEER_LOST) {
      return status;
    }
  }
}

Status Group::begin(const Operation& operation, Of of) {
  if (busy_.exchange(true))
    return Status::error(PERSEID_INVALID_ARGUMENT, operation.name,
                         ": another operation of this rank is running; a rank does one at a time");
  const int32_t left = mesh_->begin_operation(of == Of::kAllRanks ? ++operations_ : operations_);
  if (left >= 0) {
    const auto found = std::find(members_.begin(), members_.end(), left);
    set_abort(abort_, Failure::kLeft, static_cast<int32_t>(found - members_.begin()));
  }
  if (cpu::load_acquire(abort_) == 0) return {};
  end();
  return failure(operation);
}

void Group::end() { busy_.store(false); }

Status Group::wait(const Operation& operation, int32_t rank, const uint32_t* word, uint32_t epoch) {
  if (epoch_reached(cpu::load_acquire(word), epoch)) return {};
  publish_wait(rank, word, epoch);
  const WaitEnd end = cpu::wait_for_signal(word, epoch, operation.deadline, abort_);
  if (end == WaitEnd::kTimeout) return give_up(operation, rank);
  __atomic_store_n(&words_[rank_].waits_for, 0, __ATOMIC_RELEASE);
  return end == WaitEnd::kArrived ? Status() : failure(operation);
}

bool Group::locate(const void* address, SegmentAddress* found) const {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& [number, each] : segments_) {
    const std::shared_ptr<Segment> segment = each.lock();
    if (segment == nullptr || at < segment->data() || at >= segment->data() + segment->bytes())
      continue;
    *found = {generation_, number, static_cast<uint64_t>(at - segment->data())};
    return true;
  }
  return false;
}

void Group::publish_wait(int32_t rank, const uint32_t* word, uint32_t epoch) {
  RankWords& own = words_[rank_];
  SegmentAddress address;
  if (!locate(word, &address)) return;
  __atomic_store_n(&own.segment, address.segment, __ATOMIC_RELAXED);
  __atomic_store_n(&own.offset, address.offset, __ATOMIC_RELAXED);
  __atomic_store_n(&own.epoch, epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&own.waits_for, static_cast<uint32_t>(rank + 1), __ATOMIC_RELEASE);
}

bool Group::read(int32_t rank, const SegmentAddress& address, size_t bytes, void* data) const {
  if (puts_ != nullptr && rank != rank_)
    return puts_->get(origin(rank), address, bytes, Clock::now() + kAnswerTime, data);
  const auto found = segments_.find(address.segment);
  const std::shared_ptr<Segment> segment =
      found == segments_.end() ? nullptr : found->second.lock();
  if (segment == nullptr || address.offset > segment->bytes() - bytes) return false;
  load_words(segment->data() + address.offset, bytes, data);
  return true;
}

// Whom a rank waits for, -1: nobody. A rank that was stopped as it waited still says so when what
// it waited for has come. `answers`: false where a rank of another host says nothing.
int32_t Group::waited_for(int32_t rank, bool* answers) const {
  SegmentAddress address;
  RankWords words{};
  *answers = locate(words_ + rank, &address) && read(rank, address, kWaitBytes, &words);
  if (!*answers || words.waits_for == 0 || words.waits_for > static_cast<uint32_t>(size()))
    return -1;
  uint32_t word = 0;
  address.segment = words.segment;
  address.offset = words.offset;
  if (!read(rank, address, sizeof word, &word) || epoch_reached(word, words.epoch)) return -1;
  return static_cast<int32_t>(words.waits_for - 1);
}

uint64_t Group::waiting() const {
  uint64_t ranks = 0;
  bool answers = true;
  for_each_other([&](int32_t rank) {
    if (waited_for(rank, &answers) >= 0) ranks |= bit(rank);
  });
  return ranks;
}

void Group::put(int32_t rank, const std::byte* to, const ByteRows& rows, PutSource source) const {
  SegmentAddress address;
  if (puts_ != nullptr && rows.total() > 0 && locate(to, &address))
    puts_->put(origin(rank), address, rows, std::move(source));
}

void Group::put(int32_t rank, const std::byte* data, size_t bytes) const {
  SegmentAddress address;
  if (puts_ == nullptr || bytes == 0 || !locate(data, &address)) return;
  puts_->put(origin(rank), address, {.bytes = bytes},
             {.data = data, .keep = segments_.at(address.segment).lock()});
}

void Group::put_when(const uint32_t* ready, uint32_t epoch, int32_t rank, const std::byte* to,
                     const ByteRows& rows, PutSource source, const uint32_t* word) const {
  SegmentAddress address, signalled;
  if (puts_ != nullptr && locate(to, &address) && locate(word, &signalled))
    puts_->put_when(ready, epoch, origin(rank), address, rows, std::move(source), signalled);
}

void Group::signal(uint32_t* word, uint32_t epoch) const {
  cpu::set_signal(word, epoch);
  if (puts_ != nullptr) for_each_other([&](int32_t rank) { signal(rank, word, epoch); });
}

void Group::signal(int32_t rank, const uint32_t* word, uint32_t epoch) const {
  SegmentAddress address;
  if (puts_ != nullptr && locate(word, &address)) puts_->signal(origin(rank), address, epoch);
}

SegmentAddress Group::address_of(const uint32_t* word) const {
  const auto* at = reinterpret_cast<const std::byte*>(word);
  return {generation_, 0, static_cast<uint64_t>(at - slab_->data())};
}

void Group::tell_begun(uint32_t operations) const {
  uint32_t* const word = &words_[rank_].begun;
  cpu::set_signal(word, operations);
  for_each_other([&](int32_t rank) { puts_->signal(origin(rank), address_of(word), operations); });
}

bool Group::answers(int32_t rank) const {
  uint32_t begun = 0;
  return puts_->get(origin(rank), address_of(&words_[rank].begun), sizeof begun,
                    Clock::now() + kAnswerTime, &begun);
}

Status Group::give_up(const Operation& operation, int32_t rank) {
  // A rank that waits is late because another one is.
  bool answers = true;
  for (int32_t steps = 0; steps < size(); ++steps) {
    const int32_t next = waited_for(rank, &answers);
    if (next < 0 || next == rank_) break;
    rank = next;
  }
  // One that answers may itself be about to find out who is silent.
  const Clock::time_point verdict = Clock::now() + kVerdictTime;
  while (puts_ != nullptr && answers && cpu::load_acquire(abort_) == 0 && Clock::now() < verdict)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  fail(Failure::kSilent, rank);
  return failure(operation);
}

}  // namespace perseid::internal::collective
