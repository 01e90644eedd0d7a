#include "ranks/launcher.h"

#include <charconv>
#include <cstdlib>

#include "base/text.h"
#include "base/try.h"

namespace moracle::cli {
namespace {

// Environment variables of one launcher. Empty: not available.
struct Launcher {
  const char *rank, *size, *local_rank, *local_size;
  bool mpi;
};
// Inner launchers first: mpirun in a Slurm allocation sets both.
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    // Use step variables: a batch script runs once and lacks them.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", true},
};

Result<int64_t> number(const Environment& environment, const char* name, int64_t otherwise) {
  const std::optional<std::string> text = environment(name);
  if (!text) return otherwise;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size() && value >= 0) return value;
  return Error{ErrorKind::kInvalidArgument, "", name, "a whole number", "it is '" + *text + "'"};
}

}  // namespace

Result<RankOptions> launched_as(const Environment& environment) {
  RankOptions options;
  for (const Launcher& launcher : kLaunchers) {
    if (!environment(launcher.rank) || !environment(launcher.size)) continue;
    MORACLE_TRY(options.rank, number(environment, launcher.rank, 0));
    MORACLE_TRY(options.size, number(environment, launcher.size, 1));
    MORACLE_TRY(options.local_rank, number(environment, launcher.local_rank, 0));
    MORACLE_TRY(options.local_size, number(environment, launcher.local_size, 1));
    options.mpi_launcher = launcher.mpi;
    break;
  }
  if (options.size == 1) return options;  // other programs use these names, too
  const std::optional<std::string> secret = environment("MORACLE_JOB_SECRET");
  if (secret && secret->empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "MORACLE_JOB_SECRET",
                 "a secret of at least 16 bytes, or to be unset", "it is empty"};
  }
  options.secret = secret.value_or("");
  options.address = environment("MASTER_ADDR").value_or("");
  MORACLE_TRY(const int64_t port, number(environment, "MASTER_PORT", 0));
  options.port = static_cast<int>(std::min<int64_t>(port, 65536));
  return options;
}

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

}  // namespace moracle::cli
