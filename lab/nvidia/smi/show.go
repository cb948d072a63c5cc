// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func list(o *options) error {
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	for _, g := range chosen {
		name, _ := g.GetName()
		uuid, _ := g.GetUUID()
		fmt.Printf("GPU %d: %s (UUID: %s)\n", g.index, name, uuid)
		for j, mig := range migDevices(g) {
			name, _ := mig.GetName()
			uuid, _ := mig.GetUUID()
			_, profile, _ := strings.Cut(name, " MIG ")
			fmt.Printf("  MIG %-11s Device %2d: (UUID: %s)\n", profile, j, uuid)
		}
	}
	return nil
}

func migDevices(g gpu) []nvml.Device {
	var devices []nvml.Device
	count, rc := g.GetMaxMigDeviceCount()
	if rc != nvml.SUCCESS {
		return nil
	}
	for j := range count {
		if mig, rc := g.GetMigDeviceHandleByIndex(j); rc == nvml.SUCCESS {
			devices = append(devices, mig)
		}
	}
	return devices
}

type field struct {
	unit string
	read func(gpu) (string, nvml.Return)
}

func enabled(state nvml.EnableState, rc nvml.Return) (string, nvml.Return) {
	if state == nvml.FEATURE_ENABLED {
		return "Enabled", rc
	}
	return "Disabled", rc
}

func onOff(mode int) string {
	if mode == nvml.DEVICE_MIG_ENABLE {
		return "Enabled"
	}
	return "Disabled"
}

func memory(pick func(nvml.Memory) uint64) func(gpu) (string, nvml.Return) {
	return func(g gpu) (string, nvml.Return) {
		m, rc := g.GetMemoryInfo()
		return fmt.Sprint(pick(m) >> 20), rc
	}
}

func number[T any](value T, rc nvml.Return) (string, nvml.Return) { return fmt.Sprint(value), rc }

func plain(value string) (string, nvml.Return) { return value, nvml.SUCCESS }

var fields = map[string]field{
	"count":      {"", func(gpu) (string, nvml.Return) { return number(nvml.DeviceGetCount()) }},
	"index":      {"", func(g gpu) (string, nvml.Return) { return plain(fmt.Sprint(g.index)) }},
	"name":       {"", func(g gpu) (string, nvml.Return) { return g.GetName() }},
	"uuid":       {"", func(g gpu) (string, nvml.Return) { return g.GetUUID() }},
	"pci.bus_id": {"", func(g gpu) (string, nvml.Return) { return plain(g.bus) }},
	"pci.device_id": {"", func(g gpu) (string, nvml.Return) {
		pci, rc := g.GetPciInfo()
		return fmt.Sprintf("0x%08X", pci.PciDeviceId), rc
	}},
	"driver_version": {"", func(gpu) (string, nvml.Return) { return nvml.SystemGetDriverVersion() }},
	"mig.mode.current": {"", func(g gpu) (string, nvml.Return) {
		current, _, rc := g.GetMigMode()
		return onOff(current), rc
	}},
	"mig.mode.pending": {"", func(g gpu) (string, nvml.Return) {
		_, pending, rc := g.GetMigMode()
		return onOff(pending), rc
	}},
	"persistence_mode": {"", func(g gpu) (string, nvml.Return) { return enabled(g.GetPersistenceMode()) }},
	"ecc.mode.current": {"", func(g gpu) (string, nvml.Return) {
		current, _, rc := g.GetEccMode()
		return enabled(current, rc)
	}},
	"compute_cap": {"", func(g gpu) (string, nvml.Return) {
		major, minor, rc := g.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), rc
	}},
	"pstate": {"", func(g gpu) (string, nvml.Return) {
		state, rc := g.GetPerformanceState()
		return fmt.Sprintf("P%d", state), rc
	}},
	"memory.total": {"MiB", memory(func(m nvml.Memory) uint64 { return m.Total })},
	"memory.used":  {"MiB", memory(func(m nvml.Memory) uint64 { return m.Used })},
	"memory.free":  {"MiB", memory(func(m nvml.Memory) uint64 { return m.Free })},
	"utilization.gpu": {"%", func(g gpu) (string, nvml.Return) {
		u, rc := g.GetUtilizationRates()
		return fmt.Sprint(u.Gpu), rc
	}},
	"temperature.gpu": {"", func(g gpu) (string, nvml.Return) { return number(g.GetTemperature(nvml.TEMPERATURE_GPU)) }},
	"power.draw": {"W", func(g gpu) (string, nvml.Return) {
		mw, rc := g.GetPowerUsage()
		return fmt.Sprintf("%.2f", float64(mw)/1000), rc
	}},
	"power.limit": {"W", func(g gpu) (string, nvml.Return) {
		mw, rc := g.GetEnforcedPowerLimit()
		return fmt.Sprintf("%.2f", float64(mw)/1000), rc
	}},
	"pcie.link.gen.current":   {"", func(g gpu) (string, nvml.Return) { return number(g.GetCurrPcieLinkGeneration()) }},
	"pcie.link.gen.max":       {"", func(g gpu) (string, nvml.Return) { return number(g.GetMaxPcieLinkGeneration()) }},
	"pcie.link.width.current": {"", func(g gpu) (string, nvml.Return) { return number(g.GetCurrPcieLinkWidth()) }},
	"pcie.link.width.max":     {"", func(g gpu) (string, nvml.Return) { return number(g.GetMaxPcieLinkWidth()) }},
}

var aliases = map[string]string{"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}

func query(o *options) error {
	header, units := true, true
	formats := strings.Split(o.format, ",")
	if formats[0] != "csv" {
		return fail(exitBadArgument, "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n")
	}
	for _, f := range formats[1:] {
		switch strings.TrimSpace(f) {
		case "noheader":
			header = false
		case "nounits":
			units = false
		default:
			return fail(exitBadArgument, "Unknown format %q. Please run 'nvidia-smi -h' for help.\n", f)
		}
	}
	var names, titles []string
	for _, name := range strings.Split(o.query, ",") {
		name = strings.TrimSpace(name)
		if full, ok := aliases[name]; ok {
			name = full
		}
		f, ok := fields[name]
		if !ok {
			return fail(exitBadArgument, "Field \"%s\" is not a valid field to query.\n", name)
		}
		names = append(names, name)
		if f.unit != "" {
			name += " [" + f.unit + "]"
		}
		titles = append(titles, name)
	}
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	if header {
		fmt.Println(strings.Join(titles, ", "))
	}
	for _, g := range chosen {
		var values []string
		for _, name := range names {
			values = append(values, show(fields[name], g, units))
		}
		fmt.Println(strings.Join(values, ", "))
	}
	return nil
}

func show(f field, g gpu, units bool) string {
	value, rc := f.read(g)
	switch {
	case rc == nvml.ERROR_NOT_SUPPORTED || rc == nvml.ERROR_FUNCTION_NOT_FOUND:
		return "[N/A]"
	case rc != nvml.SUCCESS:
		return "[" + nvml.ErrorString(rc) + "]"
	case units && f.unit != "":
		return value + " " + f.unit
	}
	return value
}

func now() string { return time.Now().Format("Mon Jan _2 15:04:05 2006") }

func full(o *options) error {
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	line := func(name, value string) { fmt.Printf("    %-52s : %s\n", name, value) }
	driver, _ := nvml.SystemGetDriverVersion()
	cuda, _ := nvml.SystemGetCudaDriverVersion()
	count, _ := nvml.DeviceGetCount()
	fmt.Printf("\n==============NVSMI LOG (simulated)==============\n\n")
	fmt.Printf("%-56s : %s\n%-56s : %s\n%-56s : %s\n\n", "Timestamp", now(), "Driver Version", driver, "CUDA Version", cudaVersion(cuda))
	fmt.Printf("%-56s : %d\n", "Attached GPUs", count)
	for _, g := range chosen {
		value := func(name string) string { return strings.Trim(show(fields[name], g, true), "[]") }
		fmt.Printf("GPU %s\n", g.bus)
		line("Product Name", value("name"))
		line("Persistence Mode", value("persistence_mode"))
		fmt.Println("    MIG Mode")
		line("    Current", value("mig.mode.current"))
		line("    Pending", value("mig.mode.pending"))
		line("GPU UUID", value("uuid"))
		fmt.Println("    FB Memory Usage")
		line("    Total", value("memory.total"))
		line("    Used", value("memory.used"))
		line("    Free", value("memory.free"))
		fmt.Println()
	}
	return nil
}

func table(o *options) error {
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	driver, _ := nvml.SystemGetDriverVersion()
	cuda, _ := nvml.SystemGetCudaDriverVersion()
	rule := "+" + strings.Repeat("-", 89) + "+"
	fmt.Println(now())
	fmt.Println(rule)
	fmt.Printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", version, driver, cudaVersion(cuda))
	fmt.Printf("| %-87s |\n", "Simulated: the Rackwright lab, no GPU behind it.")
	fmt.Println("|-----------------------------------------+------------------------+----------------------+")
	fmt.Println("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
	fmt.Println("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
	fmt.Println("|                                         |                        |               MIG M. |")
	fmt.Println("|=========================================+========================+======================|")
	for _, g := range chosen {
		value := func(name string) string { return strings.Trim(show(fields[name], g, false), "[]") }
		persistence := map[string]string{"Enabled": "On", "Disabled": "Off"}[value("persistence_mode")]
		util := value("utilization.gpu")
		if util != "N/A" {
			util += "%"
		}
		fmt.Printf("| %3d  %-26.26s %6s  | %16s   Off | %20d |\n", g.index, value("name"), persistence, g.bus, 0)
		fmt.Printf("| N/A  %3sC    %-4s  %10sW / %4sW  | %7sMiB / %6sMiB | %8s     Default |\n", value("temperature.gpu"), value("pstate"),
			strings.Split(value("power.draw"), ".")[0], strings.Split(value("power.limit"), ".")[0],
			value("memory.used"), value("memory.total"), util)
		fmt.Printf("| %39s | %22s | %20s |\n", "", "", value("mig.mode.current"))
		fmt.Println("+-----------------------------------------+------------------------+----------------------+")
	}
	fmt.Println()
	fmt.Println(rule)
	fmt.Printf("| %-87s |\n", "Processes:")
	fmt.Printf("| %-87s |\n", "  No running processes found")
	fmt.Println(rule)
	return nil
}
