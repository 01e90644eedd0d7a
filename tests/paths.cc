#include "paths.h"

namespace moracle::testing {

std::string golden_dir() {
  return MORACLE_GOLDEN_DIR;
}

std::string docs_dir() {
  return MORACLE_DOCS_DIR;
}

std::string models_dir() {
  return MORACLE_MODELS_DIR;
}

std::string checkpoints_dir() {
  return MORACLE_CHECKPOINTS_DIR;
}

std::string published_configs_dir() {
  return MORACLE_PUBLISHED_CONFIGS_DIR;
}

std::string command_path() {
  return MORACLE_COMMAND;
}

}  // namespace moracle::testing
