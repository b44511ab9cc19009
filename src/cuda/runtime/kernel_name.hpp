// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Name expressions of kernels for NVRTC. A kernel's configuration is a struct passed as a template
// argument; its name holds every field, since NVRTC would compile the default of one that is
// missing. A configuration lists its fields once, after their declaration:
//
//   struct SomeConfig {
//     int keys = 128;
//     bool causal = false;
//     static constexpr const char* kName = "SomeConfig";
//     template <class Config, class Visit>
//     static constexpr void visit_fields(Config& c, Visit visit) {
//       visit("keys", c.keys);
//       visit("causal", c.causal);
//     }
//   };
//
// To add a field (bool, int or enum): declare it and add its line at the same position of
// visit_fields. A field that is left out does not compile; tests/kernel_name_test.cpp checks the
// order.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

// Converts to any type: what an initialiser of an unknown field is.
struct AnyField {
  template <class T>
  constexpr operator T() const {
    return T{};
  }
};

// Members of an aggregate: as many initialisers as it takes.
template <class Config, class... Fields>
constexpr int count_members(Fields... fields) {
  if constexpr (requires { Config{fields..., AnyField{}}; })
    return count_members<Config>(fields..., AnyField{});
  else
    return static_cast<int>(sizeof...(Fields));
}

template <class Config>
constexpr int count_visited() {
  int count = 0;
  Config config{};
  Config::visit_fields(config, [&](const char*, auto&) { ++count; });
  return count;
}

// NAME<Config{.field = value, ...}>. Enumerators are written as numbers cast to the field's type.
template <class Config>
std::string kernel_name(std::string_view kernel, const Config& config) {
  static_assert(count_visited<Config>() == count_members<Config>(),
                "visit_fields of this configuration does not list each of its fields");
  const std::string type = concatenate("perseid::internal::cuda::", Config::kName);
  std::string fields;
  Config::visit_fields(config, [&](const char* name, const auto& value) {
    using Field = std::remove_cvref_t<decltype(value)>;
    fields += concatenate(fields.empty() ? "." : ", .", name, " = ");
    if constexpr (std::is_same_v<Field, bool>)
      fields += value ? "true" : "false";
    else if constexpr (std::is_enum_v<Field>)
      fields += concatenate("decltype(", type, "::", name, ")(", static_cast<int>(value), ")");
    else
      fields += concatenate(value);
  });
  return concatenate("perseid::internal::cuda::", kernel, "<", type, "{", fields, "}>");
}

// The name of a kernel that is compiled for a type of elements.
inline std::string kernel_name(std::string_view kernel, DType dtype) {
  return concatenate("perseid::internal::cuda::", kernel, "<perseid::internal::DType(",
                     static_cast<int>(dtype), ")>");
}

}  // namespace perseid::internal::cuda
