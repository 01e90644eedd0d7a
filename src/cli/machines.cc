// moracle machines: lists this machine and the known machines.
#include <iostream>

#include "base/text.h"
#include "command.h"
#include "terminal.h"

namespace moracle::cli {
namespace machines_verb {
namespace {

Json to_json(const Machine& machine) {
  Json gpus = Json::array();
  for (const GpuInfo& gpu : machine.gpus) {
    Json entry = {{"platform", name(gpu.platform)},
                  {"index", gpu.index},
                  {"model", gpu.model},
                  {"memory_bytes", gpu.memory_bytes},
                  {"max_allocation_bytes",
                   gpu.max_allocation_bytes > 0 ? Json(gpu.max_allocation_bytes) : Json(nullptr)}};
    if (gpu.capability > 0) {
      entry["compute_capability"] = str(gpu.capability / 10, ".", gpu.capability % 10);
    }
    gpus.push_back(entry);
  }
  return {{"name", machine.name},
          {"cpu",
           {{"model", machine.cpu.model},
            {"isa", names(machine.cpu.isa)},
            {"threads", machine.cpu.threads},
            {"memory_bytes", machine.cpu.memory_bytes}}},
          {"gpus", gpus}};
}

void add_row(Table& table, const Machine& machine) {
  std::vector<std::string> gpus;
  for (const GpuInfo& gpu : machine.gpus) {
    gpus.push_back(str(
        gpu.model, " (", name(gpu.platform),
        gpu.capability > 0 ? str(" ", gpu.capability / 10, ".", gpu.capability % 10) : "", ")"));
  }
  table.row({machine.name, machine.cpu.model, str(machine.cpu.threads, " threads"),
             megabytes(machine.cpu.memory_bytes), names(machine.cpu.isa), join(gpus)});
}

}  // namespace
}  // namespace machines_verb

void add_machines(CLI::App& app, Work& chosen) {
  add_verb(
      app, "machines", "List this machine and the known machines",
      [](CLI::App& verb) -> Work {
        auto json = std::make_shared<bool>(false);
        verb.add_flag("--json", *json, "Print one JSON document on stdout");
        return [json]() -> int {
          const Machine here = Machine::here();
          if (*json) {
            Json known = Json::array();
            for (const Machine& machine : Machine::known())
              known.push_back(machines_verb::to_json(machine));
            print({{"here", machines_verb::to_json(here)}, {"known", known}});
            return kDone;
          }
          Table table;
          machines_verb::add_row(table, here);
          for (const Machine& machine : Machine::known()) machines_verb::add_row(table, machine);
          std::cout << table.text({2, 3});
          return kDone;
        };
      },
      chosen);
}

}  // namespace moracle::cli
