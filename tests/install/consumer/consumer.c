/* SPDX-FileCopyrightText: 2026 The Perseid Authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* A user's C program: the installed header and library agree. */
#include <perseid/perseid.h>
#include <stdio.h>

int main(void) {
  printf("perseid %s\n", perseid_version());
  return perseid_abi_version() == PERSEID_ABI_VERSION ? 0 : 1;
}
