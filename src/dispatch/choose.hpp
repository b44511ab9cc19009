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

// Which entry may be chosen. name "": any.
struct Wish {
  std::string name;
  std::string origin;  // the field or variable that names it, for messages
};

// The descriptor's implementation, else PERSEID_FORCE_IMPL where the list has an entry of that
// name, else any. A descriptor that names no entry is refused.
Status read_wish(const char* wanted, const Device& device, const std::vector<const char*>& names,
                 Wish* wish);

// Fails if no operation's list has an entry of this name; for PERSEID_FORCE_IMPL.
Status check_forced_name(std::string_view name);

// Why an entry of this name has no kernels for the device; "" if it may have some. A name begins
// with its device.
std::string wrong_device(std::string_view name, const Device& device);

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

  for (const auto& entry : list) {
    Considered considered{entry.name, Verdict::kRefused, ""};
    if (choice->executable != nullptr) {
      considered.verdict = Verdict::kNotTried;
      considered.reason = "an earlier one took the problem";
    } else if (!wish.name.empty() && wish.name != entry.name) {
      considered.verdict = Verdict::kNotTried;
      considered.reason = concatenate(wish.origin, " asks for ", wish.name);
    } else if (considered.reason = wrong_device(entry.name, device); !considered.reason.empty()) {
      // Refused.
    } else if (considered.reason = entry.refuse(problem, device); considered.reason.empty()) {
      std::unique_ptr<Executable<Operation>> made;
      if (Status status = entry.make(problem, device, &made); !status.ok()) return status;
      const std::string kernels = made->kernels();
      choice->executable = std::move(made);
      considered.verdict = Verdict::kChosen;
      considered.reason = wish.name.empty() ? "the first that takes the problem"
                                            : concatenate(wish.origin, " asks for it");
      if (!kernels.empty()) considered.reason += concatenate(" (", kernels, ")");
    }
    choice->considered.push_back(considered);
  }
  return choice->executable != nullptr ? Status() : nothing_takes_it(choice->considered);
}

}  // namespace perseid::internal::dispatch
