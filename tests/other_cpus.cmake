# Tests of this build as on CPUs that are not here.

# Masks: programs that depend on the instruction set run again without some of this CPU's. A mask that takes
# nothing from this CPU is skipped. `row` serves most under the mask: its conformance cases run, not all rows'.
function(moracle_masked_tests mask without row)
  set(oracle "Machine.Here*")
  set(kernels "-Cuda*:*/Cuda*:OpenCl*:*/OpenCl*")
  set(conformance "Tables/Conformance.Holds/${row}_in_*:Conformance.Holds*:WeightOnly.MatchesReferenceForDimensionsOfOne")
  set(moe "*FusedMoe*:Chunks.*:LongRows.*:*StoredLayers*:EffectiveScheme.*")
  set(models "*Architectures.*:*Adapters.*:LongRope.*:*ChunkedDelta.*:*ActivationsOption.*-*Cuda*:*OpenCl*")
  set(parallel "*DividedModels.*")
  foreach(program oracle kernels conformance moe models parallel)
    set(name Masked.${mask}.${program})
    add_test(NAME ${name} COMMAND ${program}_test --only-if-masked --gtest_brief=1 "--gtest_filter=${${program}}")
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT MORACLE_TEST_WITHOUT=${without} SKIP_RETURN_CODE 77 TIMEOUT 1800 LABELS other_cpus)
  endforeach()
endfunction()
moracle_masked_tests(Portable avx2 cpu)
moracle_masked_tests(Avx2 avx_vnni,avx512 cpu_avx2)
moracle_masked_tests(Avx512WithoutBf16 avx512_bf16,avx512_fp16,amx_int8,amx_bf16 cpu_avx512)
moracle_masked_tests(Avx512WithoutAmx amx_int8,amx_bf16 cpu_avx512)

# Emulation: the command that is built, on CPUs that lack what it was built beside. Skipped without qemu.
foreach(cpu Nehalem Haswell)
  add_test(NAME Emulated.${cpu}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/emulated_cpu.py ${cpu} $<TARGET_FILE:moracle-command>
      ${PROJECT_SOURCE_DIR}/models/qwen3moe-gptq-int4-g128)
  set_tests_properties(Emulated.${cpu} PROPERTIES
    ENVIRONMENT XDG_CACHE_HOME=${no_tuning} SKIP_RETURN_CODE 77 TIMEOUT 1800 LABELS other_cpus)
endforeach()
