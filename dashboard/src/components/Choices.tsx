// A filter with several choices, each of which can be switched on.
export function Choices<T extends string>(props: { label: string; choices: readonly T[]; chosen: string[]; onChange: (chosen: string[]) => void; single?: boolean; all?: string }) {
  const { choices, chosen, onChange } = props;
  const toggle = (choice: string) => {
    const rest = chosen.filter((each) => each !== choice);
    onChange(rest.length < chosen.length ? rest : props.single ? [choice] : [...chosen, choice]);
  };
  return (
    <div role="group" aria-label={props.label} style={{ display: "flex", gap: 6, flexWrap: "wrap" }}>
      <button type="button" className="chip" aria-pressed={!chosen.length} onClick={() => onChange([])}>{props.all ?? "all"}</button>
      {choices.map((choice) => (
        <button key={choice} type="button" className="chip" aria-pressed={chosen.includes(choice)} onClick={() => toggle(choice)}>
          {choice}
        </button>
      ))}
    </div>
  );
}
