// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the plans of all operations share. Included by perseid.hpp.
#ifndef PERSEID_PLAN_HPP_
#define PERSEID_PLAN_HPP_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "perseid/context.hpp"
#include "perseid/perseid.h"
#include "perseid/tensor.hpp"

namespace perseid {
inline namespace v0 {

/// Which execution of a plan is meant.
enum class Direction {
  kForward = PERSEID_FORWARD,    ///< results from inputs
  kBackward = PERSEID_BACKWARD,  ///< gradients of inputs
};

/// What all plans share.
class Plan {
 public:
  /// The exact bytes that executing `direction` needs; 0 where the plan does not have it.
  /// \snippet snippets.cpp workspace
  size_t workspace_size(Direction direction = Direction::kForward) const {
    size_t bytes = 0;
    detail::check(
        perseid_plan_workspace_size(get(), static_cast<perseid_direction>(direction), &bytes));
    return bytes;
  }
  /// Grows the workspace to what either direction needs, so that no execution allocates.
  /// \snippet snippets.cpp workspace
  void reserve(Workspace& workspace) const {
    workspace.reserve(std::max(forward_bytes_, backward_bytes_));
  }
  /// Every implementation in order, chosen or refused and why, for people.
  /// \snippet snippets.cpp explain
  std::string explain() const {
    const char* text = nullptr;
    detail::check(perseid_plan_explain(get(), &text));
    return text;
  }
  /// The same as JSON.
  /// \snippet snippets.cpp explain
  std::string explain_json() const {
    const char* json = nullptr;
    detail::check(perseid_plan_explain_json(get(), &json));
    return json;
  }
  /// The implementation's name, and useful FLOPs and bytes of both directions.
  /// \snippet snippets.cpp explain
  perseid_plan_info info() const {
    auto info = detail::sized<perseid_plan_info>();
    detail::check(perseid_plan_query(get(), &info));
    return info;
  }
  /// The C interface's handle, which this object owns.
  perseid_plan_t get() const { return handle_.get(); }

 protected:
  /// \cond
  explicit Plan(perseid_plan_t handle) : handle_(handle) {
    forward_bytes_ = workspace_size(Direction::kForward);
    backward_bytes_ = workspace_size(Direction::kBackward);
  }
  template <class Function, class Args>
  void execute_as(Direction direction, Function function, const Args& args, Stream stream,
                  const Scratch& scratch) const {
    const auto memory =
        scratch.of(direction == Direction::kForward ? forward_bytes_ : backward_bytes_);
    detail::check(function(get(), &args, memory.data(), memory.size(), stream));
  }
  /// \endcond

 private:
  struct Destroy {
    void operator()(perseid_plan_t handle) const { perseid_plan_destroy(handle); }
  };
  std::unique_ptr<perseid_plan, Destroy> handle_;
  size_t forward_bytes_ = 0;
  size_t backward_bytes_ = 0;
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_PLAN_HPP_
