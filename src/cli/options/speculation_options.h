// --speculate and --max-drafts of run and serve.
#pragma once

#include <string>

#include "base/text.h"
#include "base/try.h"
#include "command.h"
#include "numbers.h"
#include "terminal.h"

namespace moracle::cli {

struct SpeculationArguments {
  std::string drafter = "off";
  Speculation speculation;

  void add_to(CLI::App& verb) {
    verb.add_option("--speculate", drafter,
                    "Draft tokens and verify several in one step, which changes no text; ngram: "
                    "what followed the last tokens before; mtp: the model's layer for multi-token "
                    "prediction; auto: mtp if the files have it, else ngram; off")
        ->capture_default_str();
    verb.add_option("--max-drafts", speculation.max_drafts,
                    "With --speculate: drafts per step; fewer or none where they gain nothing")
        ->transform(whole(int64_t{1}, Speculation::kMaxDrafts))
        ->capture_default_str();
  }
  /// Errors: an unknown drafter.
  Result<Speculation> parsed() const {
    Speculation parsed = speculation;
    MORACLE_TRY(parsed.drafter, parse_drafter(drafter));
    return parsed;
  }
  /// Loads the layer for multi-token prediction if it drafts.
  Status add_to(ModelOptions& options, const Checkpoint& checkpoint) const {
    MORACLE_TRY(const Drafter wanted, parse_drafter(drafter));
    options.next_tokens =
        wanted == Drafter::kMtp || (wanted == Drafter::kAuto && !options.group &&
                                    options.device_memory == 0 && has_next_tokens(checkpoint));
    return {};
  }
};

/// What drafts did, for people; empty if there were none.
inline std::string drafts_text(const SpeculationCounts& counts, double seconds) {
  if (counts.steps == 0) return "";
  const double plain = seconds + counts.saved_seconds;
  return str(counts.accepted, " of ", counts.drafted, " drafts accepted in ", counts.steps,
             " steps, about ", rounded(plain / seconds, 2), " times as fast as without");
}

}  // namespace moracle::cli
