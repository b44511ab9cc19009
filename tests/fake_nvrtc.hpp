// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How a test steers the fake NVRTC, whose functions it finds by name.
#pragma once

#include <cstdint>

extern "C" {

// From now on a compilation ends when so many run at the same time, or after ten seconds.
void fake_nvrtc_meet(int32_t compilations);
// Compilations take so long.
void fake_nvrtc_delay(int32_t milliseconds);
// Programs with a kernel whose name contains the text do not compile; null: all do.
void fake_nvrtc_fail(const char* text);
// Counts begin again.
void fake_nvrtc_clear();
int32_t fake_nvrtc_compiled();      // programs
int32_t fake_nvrtc_most_at_once();  // compilations at the same time
int32_t fake_nvrtc_most_kernels();  // of a program
// The name of the first kernel of the compilation that began as number `number`.
const char* fake_nvrtc_kernel(int32_t number);
}
