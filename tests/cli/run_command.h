// Runs the command in a child process.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"
#include "paths.h"

namespace moracle::testing {

struct Ran {
  int code = -1;  ///< -1: killed by a signal
  std::string out, err;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs a program; `meanwhile` gets its process id.
inline Ran run_program(std::vector<std::string> arguments,
                       const std::function<void(pid_t)>& meanwhile = {}) {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/out", err = folder.path() + "/err";
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
  if (failed == 0 && meanwhile) meanwhile(pid);
  if (failed != 0 || ::waitpid(pid, &status, 0) != pid) return {};
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(out), content_of(err)};
}

inline Ran run_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::command_path());
  return run_program(std::move(arguments));
}

/// Runs a shell script; "$0" is the command, "$@" are the arguments.
inline Ran run_shell(const std::string& script, const std::vector<std::string>& arguments = {}) {
  std::vector<std::string> all = {"/bin/sh", "-c", script, testing::command_path()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(std::move(all));
}

/// Waits until the process catches the signal, and sends it.
inline void send_when_caught(pid_t pid, int signal) {
  const std::string path = "/proc/" + std::to_string(pid) + "/status";
  for (;;) {
    std::ifstream status(path);
    std::string word;
    while (status >> word && word != "SigCgt:") continue;
    uint64_t caught = 0;
    if (!(status >> std::hex >> caught)) return;  // the process has ended
    if (caught >> (signal - 1) & 1) break;
    std::this_thread::yield();
  }
  ::kill(pid, signal);
}

/// Runs the command and sends the signal as soon as its handler is installed.
inline Ran run_interrupted(std::vector<std::string> arguments, int signal = SIGINT) {
  arguments.insert(arguments.begin(), testing::command_path());
  return run_program(std::move(arguments), [&](pid_t pid) { send_when_caught(pid, signal); });
}

/// Folder of the small model in the repository, else beside the clone. Empty if neither exists.
inline std::string small_model() {
  for (const std::string& folder : {testing::models_dir(), testing::checkpoints_dir()}) {
    const std::string model = std::string(folder) + "/qwen3moe-gptq-int4-g128";
    if (std::filesystem::exists(model + "/model.safetensors")) return model;
  }
  return "";
}

/// Expects this exit code, empty stdout, and on stderr one printable line that contains all
/// `parts`.
inline void expect_one_line(const Ran& ran, std::initializer_list<std::string> parts, int code) {
  EXPECT_EQ(ran.code, code);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, ::testing::StartsWith("moracle: "));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, ::testing::EndsWith("\n"));
  EXPECT_LT(ran.err.size(), 20'000u);
  EXPECT_EQ(ran.err.find('\x1b'), ran.err.npos);
  for (const std::string& part : parts) EXPECT_THAT(ran.err, ::testing::HasSubstr(part));
}

/// Expects a rejection: exit code 2 (or another) and such a line.
inline void expect_refused(const std::vector<std::string>& arguments,
                           std::initializer_list<std::string> parts, int code = 2) {
  std::string line = "moracle";
  for (const std::string& argument : arguments) line += " '" + argument.substr(0, 200) + "'";
  SCOPED_TRACE(line);
  expect_one_line(run_command(arguments), parts, code);
}

}  // namespace moracle::testing
