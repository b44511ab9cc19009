// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Streams of the fake driver. With FAKE_STREAMS in the environment each does its work in order on a
// thread of its own, waits for words and events among it; else all work is done at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace fake {

void enqueue(void* stream, std::function<void()> work);
// Until the stream has done its work so far.
void finish(void* stream);
void record(void* event, void* stream);
void wait_event(void* stream, void* event);
// False: streams do their work at once.
bool wait_word(void* stream, const uint32_t* word, uint32_t epoch);
// Memory of the fake GPU. A copy reads other memory when it is called.
void add_memory(const void* data, size_t bytes);
void remove_memory(const void* data);
bool is_memory(const void* data);

}  // namespace fake

extern "C" {
// For the fake NCCL.
void fake_enqueue(void* stream, void (*work)(void*), void* argument);
}
