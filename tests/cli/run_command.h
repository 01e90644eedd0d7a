// Runs the command as a person would, in a process of its own.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

struct Ran {
  int code = -1;  ///< -1: it did not end by itself
  std::string out, err;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline Ran run_command(std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/out", err = folder.path() + "/err";
  arguments.insert(arguments.begin(), MORACLE_COMMAND);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), flags, 0600);
  pid_t pid = 0;
  int status = 0;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(failed, 0) << argv[0];
  if (failed != 0 || ::waitpid(pid, &status, 0) != pid) return {};
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out), content_of(err)};
}

/// The small model in the box, else the same beside the clone; empty where there is neither.
inline std::string small_model() {
  for (const char* folder : {MORACLE_MODELS_DIR, MORACLE_CHECKPOINTS_DIR}) {
    const std::string model = std::string(folder) + "/qwen3moe-gptq-int4-g128";
    if (std::filesystem::exists(model + "/model.safetensors")) return model;
  }
  return "";
}

/// Exit code 2 (or another), nothing on stdout, on stderr one line that holds all `parts`.
inline void expect_refused(const std::vector<std::string>& arguments,
                           std::initializer_list<std::string> parts, int code = 2) {
  const Ran ran = run_command(arguments);
  std::string line = "moracle";
  for (const std::string& argument : arguments) line += " '" + argument + "'";
  SCOPED_TRACE(line);
  EXPECT_EQ(ran.code, code);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, ::testing::StartsWith("moracle: "));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, ::testing::EndsWith("\n"));
  for (const std::string& part : parts) EXPECT_THAT(ran.err, ::testing::HasSubstr(part));
}

}  // namespace moracle::testing
