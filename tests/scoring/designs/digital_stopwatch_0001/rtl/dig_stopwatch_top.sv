module dig_stopwatch_top #(parameter CLK_FREQ = 50_000_000) (
    input  logic       clk,
    input  logic       reset,
    input  logic       start_stop,
    output logic [5:0] seconds,
    output logic [5:0] minutes,
    output logic       hour,
    output logic       second_pulse,
    output logic       minute_pulse,
    output logic       hour_pulse,
    output logic       beep
);
    logic [$clog2(CLK_FREQ):0] divider;
    logic one_sec_pulse;

    assign one_sec_pulse = start_stop && divider == CLK_FREQ - 1;

    always_ff @(posedge clk or posedge reset)
        if (reset) divider <= 0;
        else if (start_stop) divider <= divider == CLK_FREQ - 1 ? 0 : divider + 1;

    dig_stopwatch core (
        .clk(clk), .reset(reset), .one_sec_pulse(one_sec_pulse), .seconds(seconds), .minutes(minutes), .hour(hour),
        .second_pulse(second_pulse), .minute_pulse(minute_pulse), .hour_pulse(hour_pulse), .beep(beep)
    );
endmodule
