// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chooses from an implementation list: the first entry that takes the problem. The verdict on each
// entry is kept for explain.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {

enum class Verdict { kChosen, kRefused, kNotTried };

struct Considered {
  const char* name;
  Verdict verdict;
  std::string reason;
};

// Which entries may be chosen, in the order of preference. No names: any.
struct Wish {
  std::vector<std::string> names;
  std::string asks;  // "the descriptor asks for NAMES", for messages
};

// The descriptor's names, divided by commas; else those of PERSEID_FORCE_IMPL that the list has;
// else any. A descriptor that names no entry of the list is refused.
Status read_wish(const char* wanted, const Device& device, const std::vector<const char*>& names,
                 Wish* wish);

// Parts of `text` between commas, each once.
std::vector<std::string> names_of(std::string_view text);
// Fails if there is a name that no operation's list has. `what` the names are, for the message.
Status check_names(const char* what, std::string_view names);

// Positions of a list's entries in the order in which they are tried, those of the wish first; of
// those only the first `tried`.
struct Order {
  std::vector<size_t> entries;
  size_t tried = 0;
};
Order order_of(const Wish& wish, const std::vector<const char*>& names);

// Why an entry of this name may not be used: its kernels are for another kind of device, with which
// a name begins, or it is switched off; "" if it may.
std::string why_unusable(std::string_view name, const Device& device);

// The error if no entry took the problem, with the reason of each.
Status nothing_takes_it(const std::vector<Considered>& considered);

template <class Operation>
struct Choice {
  std::unique_ptr<const Executable<Operation>> executable;
  std::vector<Considered> considered;
};

template <class Operation>
Status choose(std::span<const Implementation<Operation>> list,
              const typename Operation::Problem& problem, const Device& device, const char* wanted,
              Choice<Operation>* choice) {
  std::vector<const char*> names;
  for (const auto& entry : list) names.push_back(entry.name);
  Wish wish;
  if (Status status = read_wish(wanted, device, names, &wish); !status.ok()) return status;

  const Order order = order_of(wish, names);
  for (size_t i = 0; i < order.entries.size(); ++i) {
    const auto& entry = list[order.entries[i]];
    Considered considered{entry.name, Verdict::kRefused, ""};
    if (i >= order.tried) {
      considered.verdict = Verdict::kNotTried;
      considered.reason = wish.asks;
    } else if (choice->executable != nullptr) {
      considered.verdict = Verdict::kNotTried;
      considered.reason = "an earlier one took the problem";
    } else if (considered.reason = why_unusable(entry.name, device); !considered.reason.empty()) {
      // Refused.
    } else if (considered.reason = entry.refuse(problem, device); considered.reason.empty()) {
      std::unique_ptr<Executable<Operation>> made;
      if (Status status = entry.make(problem, device, &made); !status.ok()) return status;
      const std::string kernels = made->kernels();
      choice->executable = std::move(made);
      considered.verdict = Verdict::kChosen;
      considered.reason = wish.names.empty() ? "the first that takes the problem" : wish.asks;
      if (!kernels.empty()) considered.reason += concatenate(" (", kernels, ")");
    }
    choice->considered.push_back(considered);
  }
  return choice->executable != nullptr ? Status() : nothing_takes_it(choice->considered);
}

}  // namespace perseid::internal::dispatch
