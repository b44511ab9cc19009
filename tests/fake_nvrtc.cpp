// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A compiler for the fake driver, which the real one does not work with: any kernels are compiled
// at once, to no code.
#include <cstddef>
#include <cstring>
#include <set>
#include <string>

namespace {

struct Program {
  std::set<std::string> names;
};

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* architectures) {
  *architectures = 90;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "none"; }
int nvrtcCreateProgram(Program** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program;
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return 0;
}
int nvrtcAddNameExpression(Program* program, const char* name) {
  program->names.insert(name);
  return 0;
}
int nvrtcCompileProgram(Program*, int, const char* const*) { return 0; }
int nvrtcGetLoweredName(Program* program, const char* name, const char** lowered) {
  *lowered = program->names.find(name)->c_str();
  return 0;
}
int nvrtcGetProgramLogSize(Program*, size_t* bytes) {
  *bytes = 0;
  return 0;
}
int nvrtcGetProgramLog(Program*, char*) { return 0; }
int nvrtcGetCUBINSize(Program*, size_t* bytes) {
  *bytes = 4;
  return 0;
}
int nvrtcGetCUBIN(Program*, char* code) {
  std::memcpy(code, "code", 4);
  return 0;
}
int nvrtcGetPTXSize(Program* program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(Program* program, char* code) { return nvrtcGetCUBIN(program, code); }

}  // extern "C"
