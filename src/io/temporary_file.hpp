// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Files that are being written, under names that say which process writes them:
//
//   .perseid-HOST-PID-START-N.tmp
//
// HOST is a hash of the host's name, START the time at which the kernel started the process PID. A
// process that is killed while it writes leaves such a file; the next writer in the folder removes
// it. A live process keeps its files: they are removed only where the name is of this host, no
// process PID that started at START runs, and nobody holds the file's lock, which its writer keeps
// while it writes. The lock distinguishes containers of one host that share a folder but not their
// process numbers.
#pragma once

#include <sys/types.h>

#include <string>

namespace perseid::internal::io {

// Creates and locks a new file in the folder, whose path ends in '/'. Returns its descriptor, or
// -1, for which errno says why.
int create_temporary(const std::string& folder, mode_t mode, std::string* path);

// Removes what killed processes have left among the folder's first entries, and says nothing of
// what it cannot remove.
void remove_abandoned(const std::string& folder);

}  // namespace perseid::internal::io
