`timescale 1ns / 1ps

module button_counter_tb;
    reg        clk = 0;
    reg        reset = 1;
    reg        btn_up = 0;
    reg        btn_down = 0;
    reg        btn_clear = 0;
    wire [3:0] ones, tens;
    wire       wrapped;
    integer    errors = 0;
    integer    i;

    button_counter #(.STABLE_CYCLES(2), .MODULUS(10)) dut (
        .clk(clk), .reset(reset), .btn_up(btn_up), .btn_down(btn_down), .btn_clear(btn_clear), .ones(ones), .tens(tens),
        .wrapped(wrapped)
    );

    always #5 clk = ~clk;

    task check(input [3:0] want_tens, input [3:0] want_ones);
        if (tens !== want_tens || ones !== want_ones) begin
            errors = errors + 1;
            $display("FAIL: t=%0t number %0d %0d, expected %0d %0d", $time, tens, ones, want_tens, want_ones);
        end
    endtask

    initial begin
        repeat (2) @(negedge clk);
        reset = 0;
        check(0, 0);
        for (i = 1; i <= 12; i = i + 1) begin
            btn_up = 1;
            repeat (4) @(negedge clk);
            check((i - 1) / 10, (i - 1) % 10);
            @(negedge clk);
            check(i / 10, i % 10);
            btn_up = 0;
            repeat (6) @(negedge clk);
        end
        btn_up = 1;
        @(negedge clk);
        btn_up = 0;
        btn_down = 1;
        repeat (8) @(negedge clk);
        check(1, 2);
        btn_down = 0;
        repeat (8) @(negedge clk);
        check(1, 1);
        btn_clear = 1;
        repeat (8) @(negedge clk);
        check(0, 0);
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
