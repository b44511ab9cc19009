// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A product that stores its result into the memory of another GPU and signals each finished chunk
// there: TMA stores to a peer's address, ordered before the signal at system scope. Skipped where
// there are not two GPUs of which the first reaches the second one's memory.
#include <algorithm>
#include <chrono>

#include "gpu_api_tools.hpp"

namespace perseid::testing_gpu {
namespace {

using namespace std::chrono_literals;

class GpuPeer : public ContextTest {
 protected:
  // Makes memory of the second GPU accessible from the first.
  void SetUp() override {
    ContextTest::SetUp();
    if (IsSkipped()) return;
    cuda_.emplace();
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto can_access =
        reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceCanAccessPeer"));
    const auto enable =
        reinterpret_cast<int (*)(void*, unsigned)>(dlsym(driver, "cuCtxEnablePeerAccess"));
    int reaches = 0;
    if (can_access(&reaches, 0, 1) != 0 || reaches == 0)
      GTEST_SKIP() << "no second GPU whose memory the first one reaches";
    peer_.emplace(Context::cuda(1));
    void* contexts[2] = {};
    for (int device : {0, 1}) ASSERT_EQ(cuda_->primary_retain(&contexts[device], device), 0);
    for (int device : {0, 1}) {
      ASSERT_EQ(cuda_->context_set(contexts[device]), 0);
      ASSERT_EQ(cuda_->stream_create(&streams_[device], 1), 0);
    }
    ASSERT_EQ(cuda_->context_set(contexts[0]), 0);
    constexpr int kAlreadyEnabled = 704;
    const int enabled = enable(contexts[1], 0);
    ASSERT_TRUE(enabled == 0 || enabled == kAlreadyEnabled) << enabled;
  }
  void TearDown() override {
    if (peer_) cuda_->context_set(nullptr);
  }

  std::optional<Cuda> cuda_;
  std::optional<Context> peer_;
  void* streams_[2] = {};
};

// The result is a block of the peer's inbox, with the inbox's strides. Whoever sees a chunk's
// signal on the peer finds all of the chunk there; around the block nothing changes.
TEST_F(GpuPeer, StoresAndSignals) {
  constexpr int64_t kM = 2048, kN = 1024, kK = 512, kRoom = 64, kPitch = kN + 2 * kRoom;
  const Chunks chunks{{0, 300, 1000, 1024, kM}};
  const auto elements = [](const Memory& memory) { return memory.size() / 2; };
  const Memory a(context(), 2 * kM * kK), b(context(), 2 * kK * kN), own(context(), 2 * kM * kN);
  const Memory inbox(*peer_, 2 * kM * kPitch), taken(*peer_, inbox.size());
  const Memory signals(*peer_, 4 * static_cast<size_t>(chunks.count()));
  const Bits host_b = random_bf16(elements(b), 1), nothing(elements(inbox), 0xffff);
  context().copy(b.data(), host_b.data(), b.size());
  const Matmul plain(context(), {.dtype = bf16, .m = kM, .n = kN, .k = kK});
  const Matmul sent(context(), {.dtype = bf16, .m = kM, .n = kN, .k = kK, .sink_c = chunks});
  const Memory workspace(context(), std::max<size_t>(sent.workspace_size(), 1));
  const Tensor left = on_gpu(a.data(), bf16, {kM, kK}), right = on_gpu(b.data(), bf16, {kK, kN});
  auto* const block = static_cast<uint16_t*>(inbox.data()) + kRoom;
  for (uint32_t epoch = 0xffffffff - 3; epoch != 4; ++epoch) {
    const Bits host_a = random_bf16(elements(a), epoch);
    context().copy(a.data(), host_a.data(), a.size());
    plain.execute(nullptr, {.a = left, .b = right, .c = on_gpu(own.data(), bf16, {kM, kN})},
                  std::span<std::byte>(workspace));
    Bits expected(elements(own)), found(elements(inbox));
    context().copy(expected.data(), own.data(), own.size());
    for (const Memory* memory : {&inbox, &taken})
      peer_->copy(memory->data(), nothing.data(), memory->size());
    const std::vector<uint32_t> before(static_cast<size_t>(chunks.count()), epoch - 1);
    peer_->copy(signals.data(), before.data(), signals.size());
    auto* const words = static_cast<uint32_t*>(signals.data());
    sent.execute(streams_[0],
                 {.a = left,
                  .b = right,
                  .c = on_gpu(block, bf16, {kM, kN}, {kPitch, 1}),
                  .departure_c = {.signals = words, .epoch = epoch, .first_chunk = 1}},
                 std::span<std::byte>(workspace));
    for (int64_t visit = 0; visit < chunks.count(); ++visit) {
      const auto chunk = static_cast<size_t>((1 + visit) % chunks.count());
      wait_for_signal(*peer_, {.signals = words + chunk, .epoch = epoch, .deadline = 10s},
                      streams_[1]);
      const int64_t at = 2 * chunks.begin[chunk] * kPitch;
      const int64_t bytes = 2 * (chunks.begin[chunk + 1] - chunks.begin[chunk]) * kPitch;
      peer_->copy(static_cast<std::byte*>(taken.data()) + at,
                  static_cast<const std::byte*>(inbox.data()) + at, static_cast<size_t>(bytes),
                  streams_[1]);
    }
    context().synchronize(streams_[0]);
    peer_->copy(found.data(), taken.data(), taken.size());
    size_t wrong = 0;
    for (int64_t i = 0; i < kM * kPitch; ++i) {
      const int64_t row = i / kPitch, column = i % kPitch - kRoom;
      const bool inside = 0 <= column && column < kN;
      wrong += found[static_cast<size_t>(i)] !=
               (inside ? expected[static_cast<size_t>(row * kN + column)] : 0xffff);
    }
    EXPECT_EQ(wrong, 0u) << "epoch " << epoch;
  }
}

}  // namespace
}  // namespace perseid::testing_gpu
