// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The standard streams. Results that cannot be written to stdout are an error of the command;
// stderr, which tells of errors, may fail without a consequence.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace perseid::cli {

// To be called before anything opens a file. A standard stream that the program was started without
// gets a descriptor on which its reads or writes fail, so that no file takes its number.
void open_standard_streams();

// Where an input that is mapped into memory loses its data, because another process cuts the file
// short or its disk fails, the program ends with a sentence and kBadInput.
void end_on_lost_input();

// To stdout. Throws Error (IO_ERROR) where it fails.
void write_out(std::string_view text);
// Writes what stdout still buffers. Throws as write_out, also for what failed before.
void flush_out();
// To stderr.
void write_err(std::string_view text);

template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write_out(fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace perseid::cli
