// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What goes through NCCL between GPUs of several hosts, with a fake NCCL and a fake driver, whose
// folder must be in LD_LIBRARY_PATH, as ctest sets it: where and when shards arrive, how ranks
// choose, and what happens where one refuses, is silent or dies. gpu_collective_process_test has
// the real ones.
#include "collective/nccl.hpp"
#include <filesystem>
#include <fstream>

#include "collective/gpu_rank.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

// Work of the default stream, as of a kernel.
void launch(std::function<void()> work) {
  static const auto enqueue = fake<void (*)(void*, void (*)(void*), void*)>("fake_enqueue");
  enqueue(
      nullptr,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> own(
            static_cast<std::function<void()>*>(argument));
        (*own)();
      },
      new std::function<void()>(std::move(work)));
}

// As a kernel waits: until the word has come, or the operation is aborted.
void await(const perseid_arrival& arrival, int64_t word) {
  while (!epoch_reached(cpu::load_acquire(arrival.signals + word), arrival.epoch) &&
         cpu::load_acquire(arrival.abort) == 0)
    usleep(20);
}

class Nccl : public NcclRanks {
 protected:
  static Status agree(const Member& member, uint64_t deadline_ns = kDeadline) {
    return NcclLinks::agree(*member.group, Operation("plan", deadline_ns), member.device->gpu);
  }
  static bool carries(const Member& member) { return NcclLinks::carry(*member.group); }
};

// A plan's part in an all-gather, of uneven shards: the shards of `inner` elements a row, in
// chunks.
class Gathering {
 public:
  Gathering(const Member& member, int64_t outer, int64_t inner = 5)
      : group_(*member.group), shards_(shards_of(group_.size(), outer)) {
    shards_.inner = inner;
    chunks_ = std::make_unique<ShardChunks>(shards_, group_.size(), 2);
    const Operation operation("all-gather", kDeadline);
    const Status status =
        transport_of(*member.device, group_)
            .make_gather({group_, operation, *member.device}, shards_, *chunks_, &transport_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }
  const ShardChunks& chunks() const { return *chunks_; }
  const GatherTransport& transport() const { return *transport_; }

  // One execution, whose kernel does `work`.
  Status execute(const Operation& operation, uint32_t epoch, std::function<void()> work) {
    const int64_t size = shards_.size(group_.rank());
    own_.resize(static_cast<size_t>(shards_.outer * size * shards_.inner));
    for (size_t i = 0; i < own_.size(); ++i)
      own_[i] = value_of(group_.rank(), static_cast<int64_t>(i), epoch);
    const Tensor shard{.data = own_.data(),
                       .dtype = shards_.dtype,
                       .rank = 3,
                       .shape = {shards_.outer, size, shards_.inner},
                       .stride = {size * shards_.inner, shards_.inner, 1}};
    cut_shard(shards_, *chunks_, group_.rank(), transport_->gathered(), shard, &parts_);
    const Turn turn(group_, operation);
    if (!turn.status().ok()) return turn.status();
    const Sending sending{epoch, nullptr, nullptr};
    Status status = transport_->send(operation, sending, parts_);
    arrival_ = transport_->arrival(operation, epoch);
    if (status.ok()) launch(std::move(work));
    if (status.ok()) status = transport_->launched(sending);
    const Status finished = transport_->finish(sending);
    return status.ok() ? finished : status;
  }
  // Whether a chunk is that of the epoch.
  bool is_right(int64_t chunk, uint32_t epoch) const {
    const int32_t rank = chunks_->owner(chunk);
    const auto c = static_cast<size_t>(chunk);
    const int64_t from = chunks_->begin[c], to = chunks_->begin[c + 1],
                  begin = shards_.begin_of(rank), size = shards_.size(rank);
    const Tensor view = shards_.view(transport_->gathered(), from, to);
    for (int64_t i = 0; i < shards_.outer; ++i)
      for (int64_t j = 0; j < (to - from) * shards_.inner; ++j)
        if (view.as<uint32_t>()[i * view.stride[0] + j] !=
            value_of(rank, (i * size + from - begin) * shards_.inner + j, epoch))
          return false;
    return true;
  }
  const perseid_arrival& arrival() const { return arrival_; }  // of the last execution
  int64_t visited(int64_t visit) const {
    return ChunkTable<int64_t>{nullptr, chunks_->count(), chunks_->pivot(group_.rank())}
        .chunk_of_visit(visit);
  }

 private:
  Group& group_;
  Shards shards_;
  std::unique_ptr<ShardChunks> chunks_;
  std::unique_ptr<GatherTransport> transport_;
  std::vector<uint32_t> own_;
  std::vector<SentPart> parts_;
  perseid_arrival arrival_{};
};

// A plan's part in a sum of shards.
class Reducing {
 public:
  Reducing(const Member& member, int64_t outer)
      : group_(*member.group),
        shards_(shards_of(group_.size(), outer)),
        chunks_(shards_, group_.size(), 2) {
    const Operation operation("reduce-scatter", kDeadline);
    const Status status =
        transport_of(*member.device, group_)
            .make_reduce({group_, operation, *member.device}, shards_, chunks_, &transport_);
    if (!status.ok()) throw std::runtime_error(status.sentence());
  }
  // One execution: the kernel computes chunk after chunk, each after before(chunk), then sums.
  Status execute(const Operation& operation, uint32_t epoch,
                 const std::function<bool(int64_t)>& before, std::atomic<bool>* right) {
    const Turn turn(group_, operation);
    if (!turn.status().ok()) return turn.status();
    const Sending sending{epoch, nullptr, nullptr};
    Status status = transport_->start(operation, sending);
    const perseid_arrival arrival = transport_->arrival(operation, epoch);
    launch([=, this] {
      const ChunkTable<int64_t> table{nullptr, chunks_.count(),
                                      chunks_.pivot((group_.rank() + 1) % group_.size())};
      for (int64_t visit = 0; visit < chunks_.count(); ++visit) {
        const int64_t chunk = table.chunk_of_visit(visit);
        if (!before(chunk)) return;
        visit_chunk(chunk, [&](uint32_t& value, int64_t element) {
          value = value_of(group_.rank(), 1000 * chunk + element, epoch);
        });
        cpu::set_signal(transport_->signals() + chunk, epoch);
      }
      for (int64_t i = 0; i < transport_->arrivals(); ++i) await(arrival, i);
      if (cpu::load_acquire(arrival.abort) == 0 && !are_right(epoch)) *right = false;
    });
    if (status.ok()) status = transport_->send(sending);
    const Status finished = transport_->finish(sending);
    return status.ok() ? finished : status;
  }

 private:
  template <class Visit>
  void visit_chunk(int64_t chunk, const Visit& visit) const {
    const auto c = static_cast<size_t>(chunk);
    const Tensor view = shards_.view(transport_->partial(), chunks_.begin[c], chunks_.begin[c + 1]);
    int64_t element = 0;
    for (int64_t i = 0; i < view.shape[0]; ++i)
      for (int64_t j = 0; j < view.shape[1] * view.shape[2]; ++j, ++element)
        visit(view.as<uint32_t>()[i * view.stride[0] + j], element);
  }
  bool are_right(uint32_t epoch) const {
    const int32_t own = group_.rank();
    const int64_t first = chunks_.first_of(own);
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      Tensor part;
      if (!transport_->part(Operation("", 1), {epoch, nullptr, nullptr}, rank, own, &part).ok())
        return false;
      for (int64_t chunk = first; chunk < chunks_.first_of(own + 1); ++chunk) {
        const auto c = static_cast<size_t>(chunk);
        const int64_t from = chunks_.begin[c] - shards_.begin_of(own),
                      size = chunks_.begin[c + 1] - chunks_.begin[c];
        for (int64_t i = 0; i < shards_.outer; ++i)
          for (int64_t j = 0; j < size * shards_.inner; ++j)
            if (part.as<uint32_t>()[i * part.stride[0] + from * part.stride[1] + j] !=
                value_of(rank, 1000 * chunk + i * size * shards_.inner + j, epoch))
              return false;
      }
    }
    return true;
  }

  Group& group_;
  const Shards shards_;
  const ShardChunks chunks_;
  std::unique_ptr<ReduceTransport> transport_;
};

TEST_F(Nccl, BringsShardsAndPartsToTheirRanks) {
  for (const int32_t size : {2, 3}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = agree(member).ok() && carries(member);
      // A later plan does not connect again.
      right = right && agree(member).ok() && carries(member);
      for (const int64_t outer : {1, 3})
        right = right && gathers(member, outer) && gathers_scales(member, outer) &&
                reduces(member, outer);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0));
  }
}

TEST_F(Nccl, IsLeftUnlessItIsAskedFor) {
  unsetenv("PERSEID_TRANSPORT");
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    return agree(member).ok() && !carries(member) && gathers(member, 3) && reduces(member, 1);
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// All ranks choose the same.
TEST_F(Nccl, IsRefusedOnAllRanksWhereOneCannot) {
  for (const auto& [name, value] : {std::pair{"PERSEID_TRANSPORT", "sockets"},
                                    {"PERSEID_TRANSPORT", "mpi"},
                                    {"FAKE_NCCL", "refuse"}}) {
    start(3, [&](int32_t rank) {
      const Member member(rank, 3);
      if (rank == 1) setenv(name, value, 1);
      const Status status = agree(member);
      const bool told = name == std::string_view("FAKE_NCCL") ||
                        status.sentence().find("not all ranks can use NCCL") != std::string::npos;
      return !status.ok() && told && !carries(member);
    });
    EXPECT_EQ(join(), std::vector<int>(3, 0)) << name << "=" << value;
  }
}

// The kernel is there before the data is, and finds each chunk behind its word.
TEST_F(Nccl, BringsChunksInTheOrderOfTheProductWordsBehindThem) {
  start(4, [&](int32_t rank) {
    const Member member(rank, 4);
    if (!agree(member).ok()) return false;
    setenv("FAKE_NCCL", "slow", 1);
    for (const int64_t outer : {1, 3}) {
      Gathering gathering(member, outer);
      for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
        std::atomic<bool> right{true};
        const Operation operation("all-gather", kDeadline);
        const int64_t count = gathering.chunks().count();
        const uint32_t* const words = gathering.transport().signals();
        const auto has_come = [&](int64_t visit) {
          return cpu::load_acquire(words + gathering.visited(visit)) == epoch;
        };
        const Status status = gathering.execute(operation, epoch, [&] {
          for (int64_t visit = 0; visit < count;) {
            // What comes later is not there before.
            for (int64_t later = count; --later > visit;)
              if (has_come(later) && !has_come(visit)) right = false;
            if (!has_come(visit)) continue;
            if (!gathering.is_right(gathering.visited(visit), epoch)) right = false;
            ++visit;
          }
        });
        const bool early = !has_come(count - 1);
        if (!status.ok() || !early || !ended(member) || !right) {
          fprintf(stderr, "rank %d: %s%s%s\n", rank, status.sentence().c_str(),
                  early ? "" : "waited", right ? "" : "wrong");
          return false;
        }
      }
    }
    return true;
  });
  EXPECT_EQ(join(), std::vector<int>(4, 0));
}

// Chunks leave when they are signalled, and no earlier.
TEST_F(Nccl, SendsPartsAsTheyAreComputed) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    const Operation operation("reduce-scatter", kDeadline);
    std::atomic<bool> right{true};
    for (const int64_t outer : {1, 3}) {
      Reducing reducing(member, outer);
      for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
        const Status status = reducing.execute(
            operation, epoch,
            [](int64_t) {
              usleep(5000);
              return true;
            },
            &right);
        if (!status.ok() || !ended(member)) return false;
      }
    }
    return right.load();
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// The data of an execution stays until its kernels have read it.
TEST_F(Nccl, QueuesExecutionsBehindOneAnother) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1), other(member, 3);
    Reducing reducing(member, 1);
    std::atomic<bool> right{true};
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 5; ++epoch) {
      for (Gathering* each : {&gathering, &other}) {
        if (!status.ok()) break;
        status = each->execute(Operation("all-gather", kDeadline), epoch, [=, &right] {
          for (int64_t chunk = 0; chunk < each->chunks().count(); ++chunk)
            while (!epoch_reached(cpu::load_acquire(each->transport().signals() + chunk), epoch))
              usleep(20);
          usleep(2000);
          for (int64_t chunk = 0; chunk < each->chunks().count(); ++chunk)
            if (!each->is_right(chunk, epoch)) right = false;
        });
      }
      if (status.ok())
        status = reducing.execute(
            Operation("reduce-scatter", kDeadline), epoch, [](int64_t) { return true; }, &right);
    }
    return status.ok() && ended(member) && right;
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// ---- Failures ----

// As a plan and its caller: what the execution or the synchronisation returns, and that the stream
// is free then.
Status outcome_of(const Member& member, Status status) {
  const Status synchronized = cuda::synchronize(*member.device->gpu, nullptr);
  return status.ok() ? synchronized : status;
}
// The survivors go on.
bool goes_on(const Member& member, int32_t left) {
  std::shared_ptr<Group> group;
  if (!member.group->shrink(Operation("shrink", 500'000'000), &group).ok()) return false;
  Member smaller = member;
  smaller.group = group;
  setenv("FAKE_NCCL", "", 1);
  return group->size() == left &&
         NcclLinks::agree(*group, Operation("plan", kDeadline), member.device->gpu).ok() &&
         (left == 1 || (gathers(smaller, 1) && reduces(smaller, 1)));
}

// Kernels, the queue and NCCL itself wait for a rank whose data does not come.
TEST_F(Nccl, EndsAtTheDeadlineWhereARankSendsNothing) {
  for (const bool sum : {false, true}) {
    start(2, [&](int32_t rank) {
      if (rank == 1) setenv("FAKE_NCCL", "silent", 1);
      const Member member(rank, 2);
      if (!agree(member).ok() || !carries(member)) return false;
      Gathering gathering(member, 1);
      Reducing reducing(member, 1);
      const auto start = Clock::now();
      const Operation operation("work", rank == 0 ? 500'000'000 : kDeadline);
      std::atomic<bool> right{true};
      Status status;
      // Several are in flight.
      for (uint32_t epoch = 1; status.ok() && epoch <= 3; ++epoch)
        status = sum ? reducing.execute(
                           operation, epoch, [](int64_t) { return true; }, &right)
                     : gathering.execute(operation, epoch, [&] { await(gathering.arrival(), 2); });
      status = outcome_of(member, std::move(status));
      if (rank == 0 && (status.code() != PERSEID_TIMEOUT || member.group->failed() != 1))
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return status.code() == PERSEID_TIMEOUT && member.group->failed() == 1 &&
             Clock::now() - start < 2s;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << sum;
  }
}

// A queue that waits for the own product is released, and sends nothing of what it waited for.
TEST_F(Nccl, EndsAtTheDeadlineWhereNothingIsComputed) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!agree(member).ok()) return false;
    Reducing reducing(member, 1);
    std::atomic<bool> right{true};
    const auto start = Clock::now();
    const Operation operation("reduce-scatter", rank == 0 ? 300'000'000 : kDeadline);
    Status status = reducing.execute(
        operation, 1, [&](int64_t) { return rank == 1; }, &right);
    status = outcome_of(member, std::move(status));
    return status.code() == PERSEID_TIMEOUT && right && Clock::now() - start < 2s;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_F(Nccl, NamesARankThatDies) {
  for (const bool within : {false, true}) {
    start(3, [&](int32_t rank) {
      if (rank == 1 && within) setenv("FAKE_NCCL", "silent", 1);
      const Member member(rank, 3);
      if (!agree(member).ok() || !carries(member)) return false;
      auto gathering = std::make_unique<Gathering>(member, 1);
      if (rank == 1) {
        std::thread([&] {
          std::this_thread::sleep_for(200ms);
          kill(getpid(), SIGKILL);
        }).detach();
        if (!within) std::this_thread::sleep_for(1s);
      }
      const auto start = Clock::now();
      const Operation operation("all-gather", kDeadline);
      Status status;
      for (uint32_t epoch = 1; status.ok() && epoch <= 3; ++epoch)
        status = gathering->execute(operation, epoch, [&] {
          for (int64_t i = 0; i < gathering->chunks().count(); ++i) await(gathering->arrival(), i);
        });
      status = outcome_of(member, std::move(status));
      if (status.code() != PERSEID_PEER_LOST || member.group->failed() != 1)
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      const bool soon = Clock::now() - start < 1500ms;
      gathering.reset();
      return status.code() == PERSEID_PEER_LOST && member.group->failed() == 1 && soon &&
             goes_on(member, 2);
    });
    EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL, 0})) << within;
  }
}

// Rank 2 cannot send to the stopped one, and so receives nothing of rank 0 either.
TEST_F(Nccl, NamesARankThatIsStopped) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1, 1 << 16);
    if (rank == 1) {
      ++board_->ready;
      raise(SIGSTOP);
      return true;
    }
    while (board_->ready == 0) usleep(1000);
    const auto start = Clock::now();
    Status status = gathering.execute(Operation("all-gather", 500'000'000), 1, [&] {
      for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(gathering.arrival(), i);
    });
    status = outcome_of(member, std::move(status));
    if (member.group->failed() != 1) fprintf(stderr, "%s\n", status.sentence().c_str());
    return status.code() == PERSEID_TIMEOUT && member.group->failed() == 1 &&
           Clock::now() - start < 2s;
  });
  for (const size_t rank : {0u, 2u}) {
    int status = 0;
    ASSERT_EQ(waitpid(children_[rank], &status, 0), children_[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << rank;
  }
  kill(children_[1], SIGKILL);
  waitpid(children_[1], nullptr, 0);
  children_.clear();
}

// Whatever call fails on one rank, the other one ends too.
TEST_F(Nccl, EndsWhereACallFails) {
  for (const std::string call :
       {"nccl 2", "nccl 3", "cuStreamWriteValue32_v2", "cuStreamBatchMemOp_v2", "cuEventRecord",
        "cuStreamWaitEvent", "cuStreamWaitValue32_v2", "cuMemcpyAsync"}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      if (!agree(member).ok()) return false;
      Gathering gathering(member, 1);
      Reducing reducing(member, 1);
      if (rank == 1 && call.starts_with("nccl")) {
        setenv("FAKE_NCCL", ("fail" + call.substr(4)).c_str(), 1);
      } else if (rank == 1) {
        fake<decltype(&fake_fail)>("fake_fail")(call.c_str(), 700, 1, 0);
      }
      const auto start = Clock::now();
      const Operation operation("work", 300'000'000);
      std::atomic<bool> right{true};
      Status status = gathering.execute(operation, 1, [&] {
        for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(gathering.arrival(), i);
      });
      if (status.ok())
        status = reducing.execute(
            operation, 1, [](int64_t) { return true; }, &right);
      status = outcome_of(member, std::move(status));
      const bool expected = !status.ok();
      if (!expected) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return expected && Clock::now() - start < 3s;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << call;
  }
}

}  // namespace
