#include "options/run_options.h"

#include "base/try.h"
#include "models/generation/dry.h"
#include "models/generation/logit_edits.h"
#include "numbers.h"

namespace moracle::cli {

void RunOptions::add_sampling_to(CLI::App& verb) {
  const auto id = [] { return whole(int64_t{0}, int64_t{INT32_MAX}); };
  verb.add_option("--temperature", temperature,
                  "Sampling temperature; 0: greedy; default: as in generation_config.json, which "
                  "also gives the defaults of the options below");
  verb.add_option("--top-k", top_k, "Sample only from the k most likely tokens; 0: off")
      ->transform(whole());
  verb.add_option("--top-p", top_p,
                  "Sample from the most likely tokens whose probabilities reach this sum; 1: off");
  verb.add_option("--min-p", min_p,
                  "Drop tokens below this share of the highest probability; 0: off");
  verb.add_option("--typical-p", typical_p,
                  "Sample from the tokens whose surprise is closest to the entropy and whose "
                  "probabilities reach this sum; 1: off");
  verb.add_option("--xtc-probability", xtc_probability,
                  "XTC: with this probability, drop all tokens that reach --xtc-threshold except "
                  "the least likely one of them; 0: off");
  verb.add_option("--xtc-threshold", xtc_threshold,
                  "XTC: probability from which a token counts; default: 0.1");
  verb.add_option("--dry-multiplier", dry_multiplier,
                  "DRY: lower a token that would continue a repetition of n tokens by this times "
                  "base^(n - allowed length); 0: off");
  verb.add_option("--dry-base", dry_base, "DRY: base of the power; default: 1.75");
  verb.add_option("--dry-allowed-length", dry_allowed_length,
                  "DRY: shorter repetitions cost nothing; default: 2")
      ->transform(whole());
  verb.add_option("--dry-penalty-last-n", dry_penalty_last_n,
                  "DRY: number of the latest tokens that are searched; -1: all")
      ->transform(whole(int64_t{-1}, int64_t{INT32_MAX}));
  verb.add_option("--dry-sequence-breaker", dry_breakers,
                  "DRY: a text that ends repetitions; may be repeated; default: line break, "
                  "colon, double quote, asterisk")
      ->allow_extra_args(false);
  verb.add_option("--seed", seed, "Random seed of the sampling")
      ->transform(whole<uint64_t>())
      ->capture_default_str();
  verb.add_option(
      "--repetition-penalty", repetition_penalty,
      "Repetition penalty: above 1, tokens of the prompt and the text become less likely; 1: off");
  verb.add_option("--no-repeat-ngram-size", no_repeat_ngram_size,
                  "Never repeat an n-gram of this many tokens; 0: off")
      ->transform(whole());
  verb.add_option("--bad-words", bad_words, "Never write this text; may be repeated")
      ->allow_extra_args(false);
  verb.add_option("--suppress-tokens", suppress_tokens, "Token ids that are never generated")
      ->delimiter(',')
      ->transform(id());
  verb.add_option("--begin-suppress-tokens", begin_suppress_tokens,
                  "Token ids that are never generated first")
      ->delimiter(',')
      ->transform(id());
  verb.add_option("--min-tokens", min_tokens, "Generate no end-of-text token before this many")
      ->transform(whole());
  verb.add_option("--stop", stop,
                  "End before this text, which may be that of a special token; may be repeated")
      ->allow_extra_args(false);
  verb.add_option("--stop-token-ids", stop_token_ids,
                  "Token ids that end the text, beside the end-of-text tokens")
      ->delimiter(',')
      ->transform(id());
  verb.add_flag("--ignore-eos", ignore_eos, "Continue after an end-of-text token");
  speculation.add_to(verb);
}

Result<GenerateOptions> RunOptions::generating(const GenerationConfig& config,
                                               const Tokenizer& tokenizer) const {
  GenerateOptions generate{.max_tokens = max_tokens.value_or(config.max_tokens.value_or(128)),
                           .sampling = config.sampling,
                           .edits = config.edits,
                           .adapter = model.adapter(),
                           .stop_ids = stop_token_ids};
  MORACLE_TRY(generate.speculation, speculation.parsed());
  SamplingOptions& sampling = generate.sampling;
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_k = top_k.value_or(sampling.top_k);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.typical_p = typical_p.value_or(sampling.typical_p);
  sampling.xtc_probability = xtc_probability.value_or(sampling.xtc_probability);
  sampling.xtc_threshold = xtc_threshold.value_or(sampling.xtc_threshold);
  sampling.seed = seed;
  LogitEdits& edits = generate.edits;
  edits.repetition_penalty = repetition_penalty.value_or(edits.repetition_penalty);
  edits.no_repeat_ngram_size = no_repeat_ngram_size.value_or(edits.no_repeat_ngram_size);
  DryOptions& dry = edits.dry;
  dry.multiplier = dry_multiplier.value_or(dry.multiplier);
  dry.base = dry_base.value_or(dry.base);
  dry.allowed_length = dry_allowed_length.value_or(dry.allowed_length);
  dry.penalty_last_n = dry_penalty_last_n.value_or(dry.penalty_last_n);
  if (dry.multiplier > 0) {
    MORACLE_TRY(dry.breaker_ids, ids_of_breakers(tokenizer, dry_breakers));
  }
  edits.suppress_tokens = suppress_tokens.value_or(edits.suppress_tokens);
  edits.begin_suppress_tokens = begin_suppress_tokens.value_or(edits.begin_suppress_tokens);
  if (min_tokens) edits.min_length = 0;
  edits.min_tokens = min_tokens.value_or(edits.min_tokens);
  if (bad_words) edits.bad_words_ids.clear();
  for (const std::string& word : bad_words.value_or(std::vector<std::string>())) {
    MORACLE_TRY(const auto runs, runs_of_word(tokenizer, word));
    edits.bad_words_ids.insert(edits.bad_words_ids.end(), runs.begin(), runs.end());
  }
  if (!ignore_eos)
    generate.stop_ids.insert(generate.stop_ids.end(), config.eos_ids.begin(), config.eos_ids.end());
  MORACLE_CHECK(check(sampling));
  MORACLE_CHECK(check(edits));
  return generate;
}

}  // namespace moracle::cli
