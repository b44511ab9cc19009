// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Canonical order over processes of which some are killed and replaced: the bits stay.
#include <signal.h>
#include <unistd.h>

#include "canonical_results.hpp"
#include "group_processes.hpp"

namespace {

using namespace collective_tools;
using canonical_results::gathered;
using canonical_results::summed;

// Until a rank is killed.
void await_loss(const Group& group) {
  const Ended end = ended([&] {
    for (;;) group.barrier();
  });
  if (end.status != PERSEID_PEER_LOST) throw std::runtime_error(end.sentence);
}

// Four ranks, three, two, and again four, of which two are new processes.
TEST_F(Processes, CanonicalOrderKeepsItsBitsInSmallerAndRenewedGroups) {
  const auto renewed = [&](int32_t rank) {
    GroupOptions options = place(rank, 4);
    options.rendezvous += ".again";
    return Group(options);
  };
  const auto says = [](bool right, int32_t rank, const char* where) {
    if (!right) fprintf(stderr, "rank %d: other bits %s\n", rank, where);
    return right;
  };
  start(4, [&](int32_t rank) {
    const Context context = Context::cpu(1);
    std::vector<float> all, sums;
    bool right = true;
    {
      const Group four(place(rank, 4));
      all = gathered(four, context);
      sums = summed(four, context);
      const Group alone = std::move(Group::threads(1)[0]);
      right = says(gathered(alone, context) == all && summed(alone, context) == sums, rank,
                   "than one rank alone");
      ++board_->ready;
      await_loss(four);
      const Group three = four.shrink(5s);
      right = says(gathered(three, context) == all, rank, "on three") && right;
      ++board_->ready;
      await_loss(three);
      const Group two = three.shrink(5s);
      right = says(gathered(two, context) == all && summed(two, context) == sums, rank, "on two") &&
              right;
      two.barrier();
    }
    ++board_->ready;
    const Group again = renewed(rank / 2);
    return says(gathered(again, context) == all && summed(again, context) == sums, rank,
                "with replacements") &&
           right;
  });
  const auto await_ranks = [&](int32_t count) {
    while (board_->ready < count) usleep(100);
  };
  await_ranks(4);
  kill(children_[3], SIGKILL);
  await_ranks(7);
  kill(children_[1], SIGKILL);
  await_ranks(9);
  start(2, [&](int32_t rank) {
    const Context context = Context::cpu(1);
    const Group again = renewed(rank + 2);
    const Group alone = std::move(Group::threads(1)[0]);
    return says(gathered(again, context) == gathered(alone, context) &&
                    summed(again, context) == summed(alone, context),
                rank + 2, "on a replacement");
  });
  EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL, 0, -SIGKILL, 0, 0}));
}

}  // namespace
