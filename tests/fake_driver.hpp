// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How a test steers the fake driver, whose functions it finds by name.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The `after`-th call from now of the driver's function `name` ("*": of any but the one
// that makes a context current) returns `result`;
// `ever`: and all later ones. name "": none.
void fake_fail(const char* name, int result, int after, int ever);
int64_t fake_calls();     // so far
int64_t fake_alive();     // what was made and not destroyed: modules, events, memory, contexts
int64_t fake_launches();  // so far
int64_t fake_blocks(int64_t back);  // of the launch so many before the last one, at most 7
// The next times between events are these, then 1 millisecond each.
void fake_elapsed(const float* milliseconds, int count);
// What TMA was last told of memory, at most 15 maps ago: a tensor of elements that lie side by
// side.
struct FakeTensorMap {
  const std::byte* data;
  uint32_t rank;
  uint64_t size[5], stride[4];  // the innermost first; strides in bytes, of the second on
};
FakeTensorMap fake_tensor_map(int64_t back);
void fake_capture(void* stream);  // this one is being captured from now on, and no other
}
