module event_array #(
    parameter NS_ROWS = 4,
    parameter NS_COLS = 4,
    parameter NBW_COL = 2,
    parameter NBW_STR = 8,
    parameter NS_EVT  = 8,
    parameter NBW_EVT = 3
) (
    input  logic                              clk,
    input  logic                              rst_async_n,
    input  logic [NBW_COL-1:0]                i_col_sel,
    input  logic [NS_ROWS*NS_COLS-1:0]        i_en_overflow,
    input  logic [NS_ROWS*NS_COLS*NS_EVT-1:0] i_event,
    input  logic [NS_COLS*NBW_STR-1:0]        i_data,
    input  logic [NS_ROWS-1:0]                i_bypass,
    input  logic [NBW_EVT-1:0]                i_raddr,
    output logic [NBW_STR-1:0]                o_data
);
    // Between the rows, column 0 lies in the most significant bits, as in i_data and for column_selector.
    wire [NS_COLS*NBW_STR-1:0] rows [0:NS_ROWS];
    wire [NS_COLS*NBW_STR-1:0] data_col_sel = rows[NS_ROWS];

    assign rows[0] = i_data;

    for (genvar r = 0; r < NS_ROWS; r++) begin : row
        for (genvar c = 0; c < NS_COLS; c++) begin : col
            localparam CELL = r * NS_COLS + c;
            localparam LANE = (NS_COLS - 1 - c) * NBW_STR;

            event_storage #(.NBW_STR(NBW_STR), .NS_EVT(NS_EVT), .NBW_EVT(NBW_EVT)) uu_event_storage (
                .clk(clk),
                .rst_async_n(rst_async_n),
                .i_en_overflow(i_en_overflow[CELL]),
                .i_event(i_event[(NS_ROWS*NS_COLS-1-CELL)*NS_EVT+:NS_EVT]),
                .i_data(rows[r][LANE+:NBW_STR]),
                .i_bypass(i_bypass[r]),
                .i_raddr(i_raddr),
                .o_data(rows[r+1][LANE+:NBW_STR])
            );
        end
    end

    column_selector #(.NBW_STR(NBW_STR), .NBW_COL(NBW_COL), .NS_COLS(NS_COLS)) uu_column_selector (
        .i_col_sel(i_col_sel),
        .i_data(data_col_sel),
        .o_data(o_data)
    );
endmodule
