// Icons, drawn on a grid of 16 with lines of 1.5.
const PATHS = {
  home: "M2.5 7.5 8 3l5.5 4.5V13h-4V9.5h-3V13h-4z",
  rollouts: "M3 4h10M3 8h10M3 12h6",
  runs: "M5 3.5v9l7-4.5z",
  threads: "M3 3.5h10v7H7.5L5 13v-2.5H3z",
  chat: "M3 8.500c0-3 2.200-5 5-5s5 2 5 4.700-2.200 4.800-5 4.800c-.8 0-1.500-.2-2.200-.4L3.200 13.500l.6-2.300C3.300 10.400 3 9.500 3 8.500zM6 8h.1M8 8h.1M10 8h.1",
  traces: "M3 4h6M5 8h7M7 12h6",
  workflows: "M3 3h4v3H3zM9 10h4v3H9zM5 6v5.5h4",
  approvals: "M8 2.5l5 2v4c0 3-2.2 4.6-5 5.5-2.8-.9-5-2.5-5-5.5v-4zM6 8l1.5 1.5L10.3 6.5",
  schedules: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2.2 1.3",
  sessions: "M3 3h10v10H3zM5.5 6h5M5.5 8.5h5M5.5 11h3",
  memory: "M8 3c3 0 5 .8 5 2s-2 2-5 2-5-.8-5-2 2-2 5-2zM3 5v6c0 1.200 2 2 5 2s5-.8 5-2V5M3 8c0 1.200 2 2 5 2s5-.8 5-2",
  workers: "M4 4h8v8H4zM6.500 6.500h3v3h-3zM6 1.800V4M10 1.800V4M6 12v2.200M10 12v2.200M1.800 6H4M1.800 10H4M12 6h2.200M12 10h2.200",
  outbox: "M2.500 8.500 13.500 3 10 13.500 7.800 9.500z",
  settings: "M3 4.500h5M11 4.500h2M9.500 3v3M3 8h2M8 8h5M6.500 6.500v3M3 11.500h6M12 11.500h1M10.500 10v3",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.300 3.300",
  copy: "M5.500 5.500h7v7h-7zM3.500 10.500v-7h7",
  check: "M3.500 8.500l3 3 6-7",
  cancel: "M8 2.500a5.500 5.500 0 1 0 0 11 5.500 5.500 0 0 0 0-11zM6 6l4 4M10 6l-4 4",
  retry: "M12.500 8a4.500 4.500 0 1 1-1.400-3.200M12.500 2.500v3h-3",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  sun: "M8 5.300a2.700 2.700 0 1 0 0 5.400 2.700 2.700 0 0 0 0-5.400zM8 1.500v1.300M8 13.200v1.300M1.500 8h1.300M13.200 8h1.300M3.400 3.400l.9.9M11.700 11.700l.9.9M12.600 3.400l-.9.9M4.300 11.700l-.9.9",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3a5.300 5.300 0 1 0 6.500 6.500z",
  right: "M6 3.500 10.500 8 6 12.500",
  down: "M3.500 6 8 10.500 12.500 6",
  leave: "M9.500 3H3.500v10h6M7 8h6.500M11 5.500 13.500 8 11 10.500",
  keys: "M2 4.500h12v7H2zM4.500 7h.1M7 7h.1M9.500 7h.1M12 7h.1M5 9.500h6",
  resources: "M8 2.500 13.500 5 8 7.500 2.500 5zM2.500 8 8 10.500 13.500 8M2.500 11 8 13.500 13.500 11",
  more: "M4 8h.1M8 8h.1M12 8h.1",
  save: "M4 2.500h8v11L8 10.500 4 13.500z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
