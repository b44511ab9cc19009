// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of plans for a GPU that is not there share.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "perseid/collective.hpp"
#include "perseid/perseid.hpp"

namespace perseid {

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
}

// What make(group) explains on each rank, or how it was refused.
inline std::vector<std::string> explained(int32_t ranks,
                                          const std::function<std::string(const Group&)>& make) {
  const std::vector<Group> groups = Group::threads(ranks);
  std::vector<std::string> texts(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        texts[rank] = make(groups[rank]);
      } catch (const Error& error) {
        texts[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace perseid
